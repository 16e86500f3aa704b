"""Turns texts and recordings of a file into inputs to compare on, as a model reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.exporter import speech_tokens
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.metrics import Metric, metrics_that_judge
from dragoman.reference_model import EncoderModel
from dragoman.runtime.audio import LogMel
from dragoman.runtime.format.texts import Languages
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

from .items import Item, ItemFile, References, described, spread
from .parity_inputs import Decode, ParityInputs, Task, text_metrics
from .sources import assumed_language, source_tokens, windows_of


def of_texts(
    checkpoint: OpenedCheckpoint, tokenizers: TokenizerFiles, given: ItemFile
) -> ParityInputs:
    """Tokenize texts of a file."""
    items = spread(given.items, given.comparison.limit)
    texts = [str(item.source) for item in items]
    description = described(given.file, len(given.items), len(items))
    language, languages = given.comparison.source_language, tokenizers.languages
    if language is None and languages is not None:
        language = assumed_language(languages)
        description += f", assumed to be {language}"
    task = references = None
    remark = ""
    if given.references is not None:
        origin = given.origin_of_references(len(items))
        references = References.of(items, origin, language)
        target = given.comparison.target_language or stated_target(checkpoint.directory, languages)
        metrics = text_metrics(checkpoint, given.comparison.metrics, target, texts)
        task, remark = _task(metrics, items, [[i] for i in range(len(items))])
    config, codec = checkpoint.model.config, codec_of(tokenizers)
    # A prompt of a decoder-only model must leave room for an output.
    longest = config.max_source_positions or config.max_target_positions // 2
    return ParityInputs(
        description,
        [source_tokens(codec, text, longest, given.file, language) for text in texts],
        [item.origin for item in items],
        texts,
        codec.decode,
        task,
        language,
        references=references,
        remark=remark,
    )


def _task(
    metrics: Sequence[Metric], items: Sequence[Item], parts: Sequence[Sequence[int]]
) -> tuple[Task | None, str]:
    references = [item.references for item in items]
    judging, remark = metrics_that_judge(metrics, references)
    return Task(judging, references, parts) if judging else None, remark


def stated_target(directory: Path, languages: Languages | None) -> str | None:
    """Find the language that a checkpoint writes, such as `target_lang` of Marian's tokenizer."""
    if languages is not None:
        return languages.default_target
    stated = read_json_if_present(directory / "tokenizer_config.json").get("target_lang")
    return stated if isinstance(stated, str) else None


def codec_of(tokenizers: TokenizerFiles) -> TextCodec:
    """Make the codec that the bundle will have.

    Files are written only if the checkpoint's do not suffice.
    """
    source, target = tokenizers.source, tokenizers.target
    plain = tokenizers.template is None and tokenizers.languages is None
    if plain and isinstance(source, Path) and isinstance(target, Path):
        return TextCodec(source, target)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        return TextCodec.of(written, Path(directory), tokenizers.languages)


Windows = list[NDArray[np.float32]]


def of_recordings(checkpoint: OpenedCheckpoint, log_mel: LogMel, given: ItemFile) -> ParityInputs:
    """Compute the windows of recordings.

    A limit keeps whole recordings if there are transcripts, and else the first windows.
    """
    items = list(given.items)
    windows = [windows_of(Path(item.source), log_mel) for item in items]
    count = sum(map(len, windows))
    description = f"{given.file.name}, {len(items)} files, {count} windows"
    whole = given.references is not None
    limit = given.comparison.limit
    if limit is not None and limit < count:
        chosen = whole_recordings(list(map(len, windows)), limit) if whole else []
        whole = bool(chosen)
        if whole:
            items, windows = [items[i] for i in chosen], [windows[i] for i in chosen]
            description += f", those of {len(chosen)} files spread evenly"
        else:
            description += f", the first {limit} of them"
    decode = _decode(checkpoint)
    task = references = None
    remark = ""
    if whole and decode is not None:
        references = _scored(given, items, windows)
        ends = accumulate(map(len, windows), initial=0)
        parts = [range(first, end) for first, end in pairwise(ends)]
        task, remark = _task(text_metrics(checkpoint, given.comparison.metrics), items, parts)
    origins = [
        f"{item.origin}, window {number}"
        for item, each in zip(items, windows, strict=True)
        for number in range(1, len(each) + 1)
    ]
    sources = [window for each in windows for window in each]
    most = None if whole else limit
    return ParityInputs(
        description,
        sources[:most],
        origins[:most],
        decode=decode,
        task=task,
        references=references,
        remark=remark,
    )


def whole_recordings(windows: Sequence[int], limit: int) -> list[int]:
    """Select recordings, spread evenly, that have at most so many windows together."""
    every = list(range(len(windows)))
    for count in range(len(windows), 0, -1):
        chosen = spread(every, count)
        if sum(windows[i] for i in chosen) <= limit:
            return chosen
    return []


def _scored(
    given: ItemFile, items: Sequence[Item], windows: Sequence[Windows]
) -> References | None:
    short = [item for item, each in zip(items, windows, strict=True) if len(each) == 1]
    if not short:
        return None
    return References.of(short, given.origin_of_references(len(short)))


def _decode(checkpoint: OpenedCheckpoint) -> Decode | None:
    assert not isinstance(checkpoint.model, EncoderModel)
    speech = speech_tokens(checkpoint.model)
    if checkpoint.tokenizers is None or speech is None:
        return None
    codec, begin = codec_of(checkpoint.tokenizers), speech.timestamp_begin
    return lambda tokens: codec.decode([t for t in tokens if begin is None or t < begin])
