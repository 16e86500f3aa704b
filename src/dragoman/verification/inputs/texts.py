"""Texts to compare on, as a model reads them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.runtime.format.languages import Languages
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

from .items import Given, described, spread
from .metrics import Task, text_metrics
from .parity_inputs import ParityInputs
from .reference_file import References
from .sources import assumed_language, source_tokens


def of_texts(
    checkpoint: OpenedCheckpoint, tokenizers: TokenizerFiles, given: Given
) -> ParityInputs:
    """
    Raises:
        DragomanError: a text is no source of the model, or a metric cannot be computed.
    """
    items = spread(given.items, given.asked.limit)
    texts = [str(item.source) for item in items]
    description = described(given.file, len(given.items), len(items))
    language, languages = given.asked.source_language, tokenizers.languages
    if language is None and languages is not None:
        language = assumed_language(languages)
        description += f", assumed to be {language}"
    task = references = None
    if given.references is not None:
        origin = given.origin_of_references(len(items))
        references = References.of(items, origin, language)
        target = given.asked.target_language or stated_target(checkpoint.directory, languages)
        metrics = text_metrics(checkpoint, given.asked.metrics, target, texts)
        if metrics:
            parts = [[i] for i in range(len(items))]
            task = Task(metrics, [item.references for item in items], parts)
    config, codec = checkpoint.model.config, codec_of(tokenizers)
    # What is continued must leave room for an output.
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
    )


def stated_target(directory: Path, languages: Languages | None) -> str | None:
    """The language that a checkpoint writes, as far as its files state it: `target_lang` of
    Marian's tokenizer, for instance. None: unknown.
    """
    if languages is not None:
        return languages.default_target
    stated = read_json_if_present(directory / "tokenizer_config.json").get("target_lang")
    return stated if isinstance(stated, str) else None


def codec_of(tokenizers: TokenizerFiles) -> TextCodec:
    """The codec of the bundle to be. Files are written only if the checkpoint's own do not do."""
    source, target = tokenizers.source, tokenizers.target
    plain = tokenizers.template is None and tokenizers.languages is None
    if plain and isinstance(source, Path) and isinstance(target, Path):
        return TextCodec(source, target)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        return TextCodec.of(written, Path(directory), tokenizers.languages)
