"""The contenders on a CPU: the reference, Dragoman's precisions, other tools.

Nothing that imports torch is imported at the top: contenders that do without PyTorch load in
processes that import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.errors import DragomanError

from ..harness import HERE, Contender, Interpreter, unchanged
from ..models.bundles import Calibration, bundle_of_checkpoint
from ..peers import ctranslate2_translator, openvino
from ..peers.interface import Batch, Generate, Rows

if TYPE_CHECKING:
    from dragoman.runtime import Model

REFERENCE = "Reference (PyTorch)"
DRAGOMAN = "Dragoman"
CTRANSLATE2 = "CTranslate2"

AS_MANY_ROWS = ", greedy, as many rows"
BEFORE = ", before"
"""Added to the name of a contender of Dragoman, name the one that it is compared with."""


@dataclass(frozen=True)
class TextContender(Contender[Batch, Rows]):
    """A contender for texts.

    Attributes:
        fp32: it computes in fp32, so that its tokens should be the reference's
        peer: it is another tool, which Dragoman is compared with
    """

    fp32: bool = False
    peer: bool = False


class BundleKind(NamedTuple):
    """A bundle that takes part: the contender's name, and what `optimize` makes it for."""

    contender: str
    target: str
    precision: str

    def preparation(self, calibration: Calibration) -> Callable[[Path, Path], Path]:
        """The contender's `prepare`, with what to quantize it with."""
        return partial(
            bundle_of_checkpoint,
            target=self.target,
            precision=self.precision,
            calibration=calibration,
        )


BUNDLES = (
    BundleKind("Dragoman fp32", "cpu", "fp32"),
    BundleKind("Dragoman int8", "cpu", "int8"),
    BundleKind("Dragoman int4", "cpu", "int4"),
)


def cpu_contenders(
    num_beams: int = 1,
    *,
    calibration: Calibration = (),
    openvino_in: Interpreter = HERE,
    before: Interpreter | None = None,
) -> list[TextContender]:
    """The reference first, peers last. Tools that are not installed are included: their failure is
    reported.

    Args:
        num_beams: of the workload; with several, Dragoman's greedy decoding of as many rows takes
            part
        calibration: what Dragoman's bundles are quantized with
        openvino_in: has Optimum-Intel
        before: has another version of Dragoman, which takes part
    """
    ours = partial(dragoman_contenders, calibration=calibration)
    contenders = [reference() if num_beams == 1 else beam_reference(), *ours()]
    if num_beams > 1:
        contenders += ours(load=load_as_many_rows, suffix=AS_MANY_ROWS)
    if before is not None:
        contenders += ours(interpreter=before, suffix=BEFORE)
    return [*contenders, *ctranslate2_contenders(), *hugging_face_contenders(openvino_in)]


def hugging_face_contenders(openvino_in: Interpreter) -> list[TextContender]:
    """Tools that decode by Hugging Face's `generate`."""
    from ..peers import hugging_face, optimum_onnx

    peer = partial(TextContender, needs_torch=True, peer=True)
    return [
        peer("Hugging Face fp32", unchanged, hugging_face.load, fp32=True),
        *(
            peer(
                f"Optimum-ONNX {variant}",
                partial(optimum_onnx.prepare, variant=variant),
                optimum_onnx.load,
                fp32=variant != "int8",
            )
            for variant in optimum_onnx.VARIANTS
        ),
        *(
            peer(
                f"OpenVINO {mode}",
                partial(openvino.prepare, mode=mode),
                partial(openvino.load, mode=mode),
                interpreter=openvino_in,
                fp32=mode == "f32",
            )
            for mode in openvino.MODES
        ),
    ]


def reference() -> TextContender:
    """The reference model in fp32, by whose greedy tokens all others are judged."""
    return TextContender(
        REFERENCE, unchanged, load_reference, needs_torch=True, required=True, fp32=True
    )


def beam_reference() -> TextContender:
    """Hugging Face's `generate` in fp32, by whose beams all others are judged."""
    from ..peers import hugging_face

    return TextContender(
        REFERENCE,
        unchanged,
        hugging_face.load,
        needs_torch=True,
        required=True,
        timed=False,  # it is a contender under its own name
        fp32=True,
    )


def dragoman_contenders(
    bundles: Iterable[BundleKind] = BUNDLES,
    *,
    calibration: Calibration = (),
    load: Callable[[Path, int], Generate] | None = None,
    interpreter: Interpreter = HERE,
    suffix: str = "",
) -> list[TextContender]:
    """Dragoman's runtime with each of these bundles.

    Args:
        calibration: what they are quantized with
        load: what they load with; None: `load_bundle`
        interpreter: exports, optimizes and runs
        suffix: of the names
    """
    return [
        TextContender(
            f"{bundle.contender}{suffix}",
            bundle.preparation(calibration),
            load or load_bundle,
            interpreter=interpreter,
            fp32=bundle.precision == "fp32",
        )
        for bundle in bundles
    ]


def ctranslate2_contenders() -> list[TextContender]:
    """CTranslate2 in each compute type that it supports on this processor."""
    return [ctranslate2_contender(compute_type) for compute_type in ctranslate2_compute_types()]


def ctranslate2_compute_types() -> list[str]:
    """Those that it supports on this processor; if it is missing, one, whose preparation fails with
    the reason.
    """
    from ..peers import ctranslate2

    try:
        return ctranslate2.compute_types()
    except DragomanError:
        return ["float32"]


def ctranslate2_contender(compute_type: str, *, device: str = "cpu") -> TextContender:
    from ..peers import ctranslate2

    return TextContender(
        f"{CTRANSLATE2} {compute_type}",
        partial(ctranslate2.prepare, compute_type=compute_type),
        partial(ctranslate2_translator.load, compute_type=compute_type, device=device),
        fp32=compute_type == "float32",
        peer=True,
    )


def load_reference(directory: Path, threads: int) -> Generate:
    """Load a Marian checkpoint into the reference model, with its end token made impossible to
    choose; it decodes with a cache.
    """
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


def load_as_many_rows(directory: Path, threads: int) -> Generate:
    """Load a bundle that decodes as many rows as a batch has beams, greedily: every source is
    repeated. The answer has the first row of each source.
    """
    greedy = load_bundle(directory, threads)

    def generate(batch: Batch) -> Rows:
        repeated = [source for source in batch.sources for _ in range(batch.num_beams)]
        return greedy(Batch(repeated, batch.new_tokens))[:: batch.num_beams]

    return generate


def generator(model: Model) -> Generate:
    """Decode all sources as one batch."""

    def generate(batch: Batch) -> Rows:
        options: dict[str, Any] = {
            "max_new_tokens": batch.new_tokens,
            "max_batch_size": len(batch.sources) * batch.num_beams,
            "max_batch_tokens": 1 << 30,
        }
        if batch.num_beams > 1:  # the end token, which is never the best, could be among the beams
            options |= {
                "num_beams": batch.num_beams,
                "length_penalty": 1.0,
                "min_new_tokens": batch.new_tokens,
            }
        return [list(result.tokens) for result in model.generate(batch.sources, **options)]

    return generate
