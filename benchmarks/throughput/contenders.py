"""The tools, each with the call by which its users decode many sentences: all at once, of which it
makes batches itself, or batches of similar length.

Nothing that imports torch is imported at the top, as in `..text.contenders`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..harness import HERE, Contender, Interpreter
from ..models.bundles import Calibration
from ..peers import openvino
from ..peers.ctranslate2_translator import CTranslate2Peer
from ..peers.interface import Rows
from ..text.contenders import BUNDLES, CTRANSLATE2, ctranslate2_compute_types
from .work import Share

WorkOff = Callable[[Share], Rows]


@dataclass(frozen=True)
class QueueTool(Contender[Share, Rows]):
    """
    Attributes:
        peer: it is another tool, which Dragoman is compared with
        fp32: it computes in fp32
    """

    peer: bool = False
    fp32: bool = False


def tools(
    calibration: Calibration,
    openvino_in: Interpreter = HERE,
    before: Interpreter | None = None,
) -> list[QueueTool]:
    """Dragoman first. Tools that are not installed are included: their failure is reported.

    Args:
        calibration: what Dragoman's bundles are quantized with
        openvino_in: has Optimum-Intel
        before: has another version of Dragoman, which takes part
    """
    from ..peers import ctranslate2

    found = [
        QueueTool(
            f"{bundle.contender}{suffix}",
            bundle.preparation(calibration),
            load_bundle,
            interpreter=interpreter,
            fp32=bundle.precision == "fp32",
        )
        for interpreter, suffix in [(HERE, ""), *([(before, ", before")] if before else [])]
        for bundle in BUNDLES
    ]
    found += [
        QueueTool(
            f"{CTRANSLATE2} {compute_type}",
            partial(ctranslate2.prepare, compute_type=compute_type),
            partial(load_ctranslate2, compute_type=compute_type),
            peer=True,
            fp32=compute_type == "float32",
        )
        for compute_type in ctranslate2_compute_types()
    ]
    return found + [
        QueueTool(
            f"OpenVINO {mode}",
            partial(openvino.prepare, mode=mode),
            partial(load_openvino, mode=mode),
            needs_torch=True,
            interpreter=openvino_in,
            peer=True,
            fp32=mode == "f32",
        )
        for mode in openvino.MODES
    ]


def load_bundle(directory: Path, threads: int) -> WorkOff:
    """Dragoman's runtime, whose batches are refilled as outputs end."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)

    def work_off(share: Share) -> Rows:
        results = model.generate(
            share.sources,
            max_new_tokens=share.max_new_tokens,
            max_batch_size=share.max_batch_size,
            max_batch_tokens=1 << 30,
        )
        return [list(result.tokens) for result in results]

    return work_off


def load_ctranslate2(directory: Path, threads: int, *, compute_type: str) -> WorkOff:
    peer = CTranslate2Peer.load(directory, threads, compute_type)
    return lambda share: peer.generate(
        share.sources, share.max_new_tokens, max_batch_size=share.max_batch_size
    )


def load_openvino(directory: Path, threads: int, *, mode: openvino.Mode) -> WorkOff:
    from ..peers.hugging_face import until_the_end

    decode = until_the_end(openvino.load_model(directory, threads, mode=mode))
    return lambda share: decode(share.sources, share.max_batch_size, share.max_new_tokens)
