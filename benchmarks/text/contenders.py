"""The contenders on a CPU: the reference, Dragoman's precisions, other tools.

Nothing that imports torch is imported at the top: contenders that do without PyTorch load in
processes that import this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.errors import DragomanError

from ..harness import Contender, unchanged
from ..models.bundles import bundle_of_checkpoint
from ..peers import ctranslate2_translator
from ..peers.interface import Batch, Generate, Rows

if TYPE_CHECKING:
    from dragoman.runtime import Model

TextContender = Contender[Batch, Rows]

REFERENCE = "Reference (PyTorch)"
CTRANSLATE2 = "CTranslate2"


class BundleKind(NamedTuple):
    """A bundle that takes part: the contender's name, and what `optimize` makes it for."""

    contender: str
    target: str
    precision: str


BUNDLES = (
    BundleKind("Dragoman fp32", "cpu", "fp32"),
    BundleKind("Dragoman int8", "cpu", "int8"),
    BundleKind("Dragoman int4", "cpu", "int4"),
)


def cpu_contenders() -> list[TextContender]:
    """The reference first. Tools that are not installed are included: their failure is reported."""
    from ..peers import hugging_face, optimum_onnx

    return [
        reference(),
        *dragoman_contenders(),
        *ctranslate2_contenders(),
        Contender("Hugging Face fp32", unchanged, hugging_face.load, needs_torch=True),
        *(
            Contender(
                f"Optimum-ONNX {variant}",
                partial(optimum_onnx.prepare, variant=variant),
                optimum_onnx.load,
                needs_torch=True,
            )
            for variant in optimum_onnx.VARIANTS
        ),
    ]


def reference() -> TextContender:
    """The reference model in fp32, by whose tokens all others are judged."""
    return Contender(REFERENCE, unchanged, load_reference, needs_torch=True, required=True)


def dragoman_contenders(bundles: Iterable[BundleKind] = BUNDLES) -> list[TextContender]:
    """Dragoman's runtime with each of these bundles."""
    return [
        Contender(
            bundle.contender,
            partial(bundle_of_checkpoint, target=bundle.target, precision=bundle.precision),
            load_bundle,
        )
        for bundle in bundles
    ]


def ctranslate2_contenders() -> list[TextContender]:
    """CTranslate2 in each compute type that it supports on this processor."""
    from ..peers import ctranslate2

    try:
        compute_types = ctranslate2.compute_types()
    except DragomanError:
        compute_types = ["float32"]  # its preparation fails with the reason
    return [ctranslate2_contender(compute_type) for compute_type in compute_types]


def ctranslate2_contender(compute_type: str, *, device: str = "cpu") -> TextContender:
    from ..peers import ctranslate2

    return Contender(
        f"{CTRANSLATE2} {compute_type}",
        partial(ctranslate2.prepare, compute_type=compute_type),
        partial(ctranslate2_translator.load, compute_type=compute_type, device=device),
    )


def load_reference(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint into the reference model, with its end token made impossible to
    choose; it decodes with a cache."""
    import torch

    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.reference_model import greedy_cached

    torch.set_num_threads(threads)
    model = load_hugging_face(directory)
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf
    return lambda batch: greedy_cached(model, batch.sources, batch.new_tokens)


def load_bundle(directory: Path, threads: int, *, backend: str | None = None) -> Generate:
    """Load a bundle by Dragoman's runtime, by default on the backend that suits it."""
    from dragoman.runtime import load

    return generator(load(directory, threads=threads, backend=backend))


def generator(model: Model) -> Generate:
    """Decode all sources as one batch."""

    def generate(batch: Batch) -> Rows:
        results = model.generate(
            batch.sources,
            max_new_tokens=batch.new_tokens,
            max_batch_size=len(batch.sources),
            max_batch_tokens=1 << 30,
        )
        return [list(result.tokens) for result in results]

    return generate
