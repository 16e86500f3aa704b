"""Recordings to compare on, as windows that a speech model reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.export.model_description import speech_tokens
from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.reference_model import EncoderModel
from dragoman.runtime.audio import LogMel

from .items import Given, Item, spread
from .metrics import Decode, Task, text_metrics
from .parity_inputs import ParityInputs
from .reference_file import References
from .sources import windows_of
from .texts import codec_of

Windows = list[NDArray[np.float32]]


def of_recordings(checkpoint: OpenedCheckpoint, log_mel: LogMel, given: Given) -> ParityInputs:
    """The windows of recordings. With transcripts a limit keeps whole recordings, without the first
    windows.

    Raises:
        DragomanError: a recording cannot be read, or a metric cannot be computed.
    """
    items = list(given.items)
    windows = [windows_of(Path(item.source), log_mel) for item in items]
    count = sum(map(len, windows))
    description = f"{given.file.name}, {len(items)} files, {count} windows"
    whole = given.references is not None
    if given.asked.limit is not None and given.asked.limit < count:
        chosen = (
            whole_recordings([len(each) for each in windows], given.asked.limit) if whole else []
        )
        whole = bool(chosen)
        if whole:
            items, windows = [items[i] for i in chosen], [windows[i] for i in chosen]
            description += f", those of {len(chosen)} files spread evenly"
        else:
            description += f", the first {given.asked.limit} of them"
    decode = _decode(checkpoint)
    task = references = None
    if whole and decode is not None:
        references = _scored(given, items, windows)
        metrics = text_metrics(checkpoint, given.asked.metrics)
        if metrics:
            ends = accumulate((len(each) for each in windows), initial=0)
            parts = [range(first, end) for first, end in pairwise(ends)]
            task = Task(metrics, [item.references for item in items], parts)
    origins = [
        f"{item.origin}, window {number}"
        for item, each in zip(items, windows, strict=True)
        for number in range(1, len(each) + 1)
    ]
    sources = [window for each in windows for window in each]
    most = None if whole else given.asked.limit
    return ParityInputs(
        description,
        sources[:most],
        origins[:most],
        decode=decode,
        task=task,
        references=references,
    )


def whole_recordings(windows: Sequence[int], limit: int) -> list[int]:
    """As many recordings as have at most so many windows together, spread evenly: their indices.

    Args:
        windows: how many each recording has
    """
    every = list(range(len(windows)))
    for count in range(len(windows), 0, -1):
        chosen = spread(every, count)
        if sum(windows[i] for i in chosen) <= limit:
            return chosen
    return []


def _scored(given: Given, items: Sequence[Item], windows: Sequence[Windows]) -> References | None:
    """The transcripts whose probability is compared: those of recordings of one window, which is
    what a model reads at once.
    """
    short = [item for item, each in zip(items, windows, strict=True) if len(each) == 1]
    if not short:
        return None
    return References.of(short, given.origin_of_references(len(short)))


def _decode(checkpoint: OpenedCheckpoint) -> Decode | None:
    """The text of tokens, without timestamps, as the runtime has it."""
    assert not isinstance(checkpoint.model, EncoderModel)
    speech = speech_tokens(checkpoint.model)
    if checkpoint.tokenizers is None or speech is None:
        return None
    codec, begin = codec_of(checkpoint.tokenizers), speech.timestamp_begin
    return lambda tokens: codec.decode([t for t in tokens if begin is None or t < begin])
