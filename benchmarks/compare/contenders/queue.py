"""Contenders that work off a queue of sentences, with their usual call for many sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...models.bundles import Calibration
from ...peers import openvino
from ...peers.ctranslate2_runtime import CTranslate2Peer
from ...peers.interface import Kind, Rows
from ...processes import HERE, Interpreter
from ..rounds import Contender
from .text import ctranslate2_translators, dragoman_contenders, openvino_contenders


class Share(NamedTuple):
    """The share of one worker."""

    sources: list[list[int]]
    max_batch_size: int
    max_new_tokens: int


Decode = Callable[[Share], Rows]
QueueContender = Contender[Share, Rows]


def contenders(
    calibration: Calibration, openvino_in: Interpreter = HERE, before: Interpreter | None = None
) -> list[QueueContender]:
    """Return tools, Dragoman first; arguments as of `translators`."""
    return [
        *dragoman_contenders(load_bundle, calibration=calibration, before=before),
        *ctranslate2_translators(load_ctranslate2),
        *openvino_contenders(load_openvino, openvino_in),
    ]


def load_bundle(directory: Path, threads: int) -> Decode:
    """Load Dragoman's runtime, which uses continuous batching."""
    from dragoman.runtime import load

    generate = partial(load(directory, threads=threads).generate, max_batch_tokens=1 << 30)
    return lambda share: [
        list(result.tokens)
        for result in generate(
            share.sources, max_new_tokens=share.max_new_tokens, max_batch_size=share.max_batch_size
        )
    ]


def load_ctranslate2(directory: Path, threads: int, *, mode: str) -> Decode:
    """Load CTranslate2, which itself forms batches of similar length."""
    peer = CTranslate2Peer(directory, threads, mode)
    return lambda share: peer.generate(
        share.sources, share.max_new_tokens, max_batch_size=share.max_batch_size
    )


def load_openvino(directory: Path, threads: int, *, mode: openvino.Mode, kind: Kind) -> Decode:
    """Load OpenVINO, which decodes batches of similar length with Hugging Face's `generate`."""
    from ...peers.hugging_face import until_the_end

    decode = until_the_end(openvino.load_model(directory, threads, mode=mode, kind=kind))
    return lambda share: decode(share.sources, share.max_batch_size, share.max_new_tokens)
