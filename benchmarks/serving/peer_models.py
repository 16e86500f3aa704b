"""Other tools, loaded: how they read a request, and what they make of a batch."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.runtime.serving.apis.bodies import Fields

from ..peers.interface import Rows


class PeerModel(NamedTuple):
    """
    Attributes:
        read: the fields of a request's body -> an item of a batch
        compute: items -> results, as JSON
    """

    read: Callable[[Fields], Any]
    compute: Callable[[Sequence[Any]], Sequence[dict[str, Any]]]


class TextItem(NamedTuple):
    source: list[int]
    max_new_tokens: int


def text_model(translate: Callable[[Sequence[list[int]], int], Rows]) -> PeerModel:
    """
    Args:
        translate: sources, and the most new tokens
    """

    def compute(items: Sequence[TextItem]) -> list[dict[str, Any]]:
        longest = max(item.max_new_tokens for item in items)
        rows = translate([item.source for item in items], longest)
        return [{"tokens": row} for row in rows]

    def read(fields: Fields) -> TextItem:
        return TextItem(fields.need("source", list), fields.need("max_new_tokens", int))

    return PeerModel(read, compute)


def ctranslate2(directory: Path, workers: int, threads: int, compute_type: str) -> PeerModel:
    """A translator that computes several batches beside each other with one copy of the weights."""
    from ..peers.ctranslate2_translator import CTranslate2Peer

    peer = CTranslate2Peer.load(directory, threads, compute_type, workers=workers)
    return text_model(lambda sources, longest: peer.generate(list(sources), longest))


def hugging_face(directory: Path, threads: int, batch: int) -> PeerModel:
    import torch
    import transformers

    from ..peers.hugging_face import until_the_end

    torch.set_num_threads(threads)
    library: Any = transformers
    model = library.MarianMTModel.from_pretrained(directory).float().eval()
    decode = until_the_end(model)
    return text_model(lambda sources, longest: decode(sources, batch, longest))


def faster_whisper(directory: Path, workers: int, threads: int, compute_type: str) -> PeerModel:
    """Its own call for each clip, which batches nothing; several beside each other."""
    from ..peers.faster_whisper import FasterWhisperPeer

    peer = FasterWhisperPeer(directory, threads, compute_type, workers=workers)
    return PeerModel(
        lambda fields: base64.b64decode(fields.need("audio", str)),
        lambda clips: [{"text": peer.transcribe(io.BytesIO(clip))} for clip in clips],
    )
