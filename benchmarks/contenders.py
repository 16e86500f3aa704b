"""What is compared: how each contender takes the weights, loads, and decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.runtime import Model
    from dragoman.runtime.format.manifest import Precision, Target

# Nothing that imports torch is imported here: some contenders must do without.

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Source token ids and a number of new tokens -> generated token ids, exactly so many."""

Load = Callable[[Path, int], Generate]
"""A directory and a number of threads -> what decodes."""

Prepare = Callable[[Path, Path], Path]
"""A Marian checkpoint and a path to write at, which is free -> the directory to load."""

REFERENCE = "Reference (PyTorch)"
CTRANSLATE2 = "CTranslate2"
BUNDLES = (
    ("Dragoman fp32", "cpu", "fp32"),
    ("Dragoman int8", "cpu", "int8"),
    ("Dragoman int4", "cpu", "int4"),
)
"""Name, target and precision of each bundle compared."""


@dataclass(frozen=True)
class Contender:
    """One of those compared. Its functions can be pickled, for they run in other processes.

    Attributes:
        needs_torch: whether it decodes with PyTorch, which others then cannot import
    """

    name: str
    prepare: Prepare
    load: Load
    needs_torch: bool = False


def all_contenders() -> list[Contender]:
    """The reference first; those whose libraries are missing too, for that is to be reported."""
    from .peers import hugging_face, optimum_onnx

    return [
        Contender(REFERENCE, as_it_is, load_reference, needs_torch=True),
        *dragoman_contenders(),
        *ctranslate2_contenders(),
        Contender("Hugging Face fp32", as_it_is, hugging_face.load, needs_torch=True),
        *(
            Contender(
                f"Optimum-ONNX {variant}",
                partial(optimum_onnx.prepare, variant=variant),
                optimum_onnx.load,
                needs_torch=True,
            )
            for variant in ("fp32", "O2", "int8")
        ),
    ]


def dragoman_contenders(bundles: Iterable[tuple[str, str, str]] = BUNDLES) -> list[Contender]:
    """Of each bundle its name, target and precision."""
    return [
        Contender(name, partial(prepare_bundle, target=target, precision=precision), load_dragoman)
        for name, target, precision in bundles
    ]


def ctranslate2_contenders() -> list[Contender]:
    """One for each compute type that this build of CTranslate2 has for this processor."""
    from .peers.ctranslate2 import compute_types

    try:
        types = compute_types()
    except DragomanError:
        types = ["float32"]  # whose preparation says what is wrong
    return [
        Contender(
            f"{CTRANSLATE2} {compute_type}",
            partial(prepare_ctranslate2, compute_type=compute_type),
            partial(load_ctranslate2, compute_type=compute_type),
        )
        for compute_type in types
    ]


def as_it_is(source: Path, directory: Path) -> Path:
    """The checkpoint itself is loaded."""
    return source


def prepare_bundle(source: Path, directory: Path, *, target: str, precision: str) -> Path:
    from dragoman.export import export_bundle
    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.runtime.format.bundle import new_directory

    neutral = directory.parent / "dragoman-neutral"
    if not neutral.exists():  # the first bundle exports it for all
        with new_directory(neutral) as partial_:
            export_bundle(load_hugging_face(source), partial_, name="random")
    return optimized(neutral, directory, target=target, precision=precision)


def optimized(neutral: Path, directory: Path, *, target: str, precision: str) -> Path:
    """What a neutral bundle becomes, written to a new directory; itself where it is asked for."""
    from dragoman.optimize.target_bundle import optimize_bundle
    from dragoman.runtime import read_bundle

    if (target, precision) == ("neutral", "fp32"):
        return neutral
    directory.mkdir()
    optimize_bundle(
        read_bundle(neutral),
        directory,
        target=cast("Target", target),
        precision=cast("Precision", precision),
    )
    return directory


def load_dragoman(directory: Path, threads: int) -> Generate:
    from dragoman.runtime import load

    return generator(load(directory, threads=threads))


def generator(model: Model) -> Generate:
    """What decodes all sources as one batch."""

    def generate(sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        results = model.generate(
            sources,
            new_tokens,
            max_batch_size=len(sources),
            max_batch_tokens=1 << 30,
        )
        return [list(result.tokens) for result in results]

    return generate


def prepare_ctranslate2(source: Path, directory: Path, *, compute_type: str) -> Path:
    from dragoman.export.families.hugging_face import load_hugging_face

    from .peers.ctranslate2 import convert

    convert(load_hugging_face(source), directory, quantization=compute_type)
    return directory


def load_ctranslate2(
    directory: Path, threads: int, *, compute_type: str, device: str = "cpu"
) -> Generate:
    from .peers.ctranslate2_translator import CTranslate2Peer

    peer = CTranslate2Peer.load(directory, threads, compute_type, device)

    def generate(sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        return peer.generate(sources, new_tokens, min_new_tokens=new_tokens)

    return generate


def load_reference(directory: Path, threads: int) -> Generate:
    """The reference model, decoding with a cache; it cannot choose its end token."""
    import torch

    from dragoman.export.families.hugging_face import load_hugging_face
    from dragoman.reference_model import greedy_cached

    torch.set_num_threads(threads)
    model = load_hugging_face(directory)
    assert model.output.bias is not None
    with torch.no_grad():
        model.output.bias[model.config.end_token_id] = -torch.inf

    def generate(sources: list[list[int]], new_tokens: int) -> list[list[int]]:
        return greedy_cached(model, sources, new_tokens)

    return generate
