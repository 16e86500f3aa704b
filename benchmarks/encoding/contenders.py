"""The contenders: PyTorch as the reference, Dragoman's precisions, other tools.

Nothing that imports torch is imported at the top: contenders that do without PyTorch load in
processes that import this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..harness import HERE, Contender, Interpreter, Perform, unchanged
from ..models.bundles import bundle_of_checkpoint
from ..peers import fastembed, onnxruntime_encoder, openvino_encoder
from ..peers.interface import Encode
from .workload import Calls

DRAGOMAN = "Dragoman"
REFERENCE = "Reference (PyTorch)"
SENTENCE_TRANSFORMERS = "sentence-transformers"

Precision = Literal["fp32", "bf16", "int8", "int4"]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class EncodingContender(Contender[Calls, Vectors]):
    """A contender for texts.

    Attributes:
        precision: that it computes in
        peer: it is another tool, which Dragoman is compared with
    """

    precision: Precision = "fp32"
    peer: bool = True


def contenders(
    calibration: Sequence[str], *, openvino_in: Interpreter = HERE
) -> list[EncodingContender]:
    """The reference first, peers last. Tools that are not installed are included: their failure is
    reported.

    Args:
        calibration: texts that a tool may look at to quantize; not those that are measured
        openvino_in: has Optimum-Intel and sentence-transformers
    """
    return [
        reference(),
        *dragoman_contenders(calibration),
        *onnx_contenders(),
        *openvino_contenders(calibration, openvino_in),
        *sentence_transformers_contenders(calibration, openvino_in),
    ]


def reference() -> EncodingContender:
    """sentence-transformers with PyTorch in fp32, by whose vectors all others are judged."""
    from ..peers import sentence_transformers

    return EncodingContender(
        REFERENCE,
        unchanged,
        performing(partial(sentence_transformers.load_torch, mode="fp32")),
        needs_torch=True,
        required=True,
        timed=False,  # it is a contender under its own name
        peer=False,
    )


def dragoman_contenders(calibration: Sequence[str]) -> list[EncodingContender]:
    precisions: tuple[Precision, ...] = ("fp32", "int8", "int4")
    return [
        EncodingContender(
            f"{DRAGOMAN} {precision}",
            partial(
                bundle_of_checkpoint,
                target="cpu",
                precision=precision,
                calibration=() if precision == "fp32" else calibration,
            ),
            performing(load_bundle),
            precision=precision,
            peer=False,
        )
        for precision in precisions
    ]


def onnx_contenders() -> list[EncodingContender]:
    """Tools that run a graph which Optimum exported."""
    from ..peers import optimum_encoder, optimum_one_graph

    tools: dict[str, Callable[[Path, int], Encode]] = {
        "ONNX Runtime": onnxruntime_encoder.load,
        "fastembed": fastembed.load,
        "Optimum-ONNX": optimum_encoder.load,
    }
    return [
        EncodingContender(
            f"{tool} {variant}",
            partial(optimum_one_graph.prepare, kind="FeatureExtraction", variant=variant),
            performing(load),
            needs_torch=tool == "Optimum-ONNX",
            precision="int8" if variant == "int8" else "fp32",
        )
        for tool, load in tools.items()
        for variant in optimum_one_graph.VARIANTS
        if variant != "optimized" or tool == "ONNX Runtime"  # where the graph is all that counts
    ]


def openvino_contenders(
    calibration: Sequence[str], openvino_in: Interpreter
) -> list[EncodingContender]:
    return [
        EncodingContender(
            f"OpenVINO {mode}",
            partial(openvino_encoder.prepare, mode=mode, calibration=calibration),
            performing(partial(openvino_encoder.load, mode=mode)),
            interpreter=openvino_in,
            precision="fp32" if mode == "f32" else mode,
        )
        for mode in openvino_encoder.MODES
    ]


def sentence_transformers_contenders(
    calibration: Sequence[str], openvino_in: Interpreter
) -> list[EncodingContender]:
    from ..peers import sentence_transformers

    contender = partial(EncodingContender, needs_torch=True)
    return [
        *(
            contender(
                f"{SENTENCE_TRANSFORMERS} PyTorch {mode}",
                unchanged,
                performing(partial(sentence_transformers.load_torch, mode=mode)),
                precision=mode,
            )
            for mode in sentence_transformers.TORCH_MODES
        ),
        *(
            contender(
                f"{SENTENCE_TRANSFORMERS} ONNX {variant}",
                partial(sentence_transformers.prepare_onnx, variant=variant),
                performing(sentence_transformers.load_onnx),
                precision=variant,
            )
            for variant in ("fp32", "int8")
        ),
        *(
            contender(
                f"{SENTENCE_TRANSFORMERS} OpenVINO {mode}",
                partial(sentence_transformers.prepare_openvino, mode=mode, calibration=calibration),
                performing(partial(sentence_transformers.load_openvino, mode=mode)),
                interpreter=openvino_in,
                precision="fp32" if mode == "f32" else mode,
            )
            for mode in openvino_encoder.MODES
        ),
    ]


def load_bundle(directory: Path, threads: int) -> Encode:
    """Load a bundle by Dragoman's runtime."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)
    return lambda texts: model.encode(list(texts))


def performing(
    load: Callable[[Path, int], Encode],
) -> Callable[[Path, int], Perform[Calls, Vectors]]:
    """The `load` of a contender that makes the calls of a work item with what this loads."""
    return partial(_load_to_perform, load=load)


def _load_to_perform(
    directory: Path, threads: int, *, load: Callable[[Path, int], Encode]
) -> Perform[Calls, Vectors]:
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of all tools' tokenizers
    encode = load(directory, threads)
    return lambda calls: np.concatenate([encode(texts) for texts in calls.texts])
