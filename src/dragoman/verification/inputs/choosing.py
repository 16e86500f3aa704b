"""What a bundle is compared on: the inputs that a user names, held-out data, or random ones."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dragoman.comparison import Comparison
from dragoman.errors import DragomanError
from dragoman.export.model_description import audio_features
from dragoman.export.model_description import head as described_head
from dragoman.export.opened_checkpoint import OpenedCheckpoint
from dragoman.metrics import PERPLEXITY
from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
from dragoman.runtime.audio import LogMel
from dragoman.runtime.encoding.tokenizer import InputTokenizer
from dragoman.runtime.format.head import Head
from dragoman.runtime.format.languages import LanguageError
from dragoman.runtime.format.writing import ScratchWriter

from .items import Given, described, recording_items, spread, text_items
from .metrics import text_metrics
from .parity_inputs import ParityInputs
from .random_inputs import RANDOM_SOURCES, random_inputs
from .recordings import of_recordings
from .reference_file import ReferenceFile, read_references
from .sources import assumed_language, encoder_lines, numbered_lines
from .texts import of_texts


def inputs_for(checkpoint: OpenedCheckpoint, asked: Comparison) -> ParityInputs:
    """The lines of a file, or the windows of audio files for a speech model; without a file the
    sources of references, the checkpoint's held-out data, or random inputs if there is none.

    Raises:
        DragomanError: a file cannot be used with this checkpoint, there are no references to
            compute a metric with, or a metric cannot be computed.
        LanguageError: the model does not have a language, or needs one for references.
    """
    config, tokenizers = checkpoint.model.config, checkpoint.tokenizers
    head = described_head(config)
    if head is not None:
        return _of_encoder(checkpoint, head, asked)
    if asked.inputs is not None and tokenizers is None and not config.takes_audio:
        raise _no_tokenizers(asked.inputs, checkpoint)
    _check_languages(checkpoint, asked.source_language, asked.target_language)
    given = None
    if asked.references is not None:
        given = ReferenceFile.read(asked.references, audio=config.takes_audio)
    file, given = _file(checkpoint, asked, given)
    if file is None:
        inputs = random_inputs(checkpoint.model, asked.limit or RANDOM_SOURCES)
        if given is not None and given.pairs is None:
            raise DragomanError(
                f"{given.path}: expected lines of a source, a tab and a reference, or inputs for "
                "references alone; found references alone, and no inputs"
            )
    else:
        inputs = _of_file(checkpoint, asked, file, given)
    if given is not None and inputs.references is None and inputs.task is None:
        inputs = _with_separate(checkpoint, inputs, given.path, asked.limit)
    inputs = dataclasses.replace(inputs, target_language=asked.target_language)
    _check_metrics(checkpoint, inputs, asked.metrics)
    return inputs


def _file(
    checkpoint: OpenedCheckpoint, asked: Comparison, given: ReferenceFile | None
) -> tuple[Path | None, ReferenceFile | None]:
    """The file to compare on, None for random inputs; and the references that are not in it."""
    if asked.inputs is not None or checkpoint.tokenizers is None:
        return asked.inputs, given
    if given is not None and given.pairs is not None and text_metrics(checkpoint, asked.metrics):
        return given.path, None
    held_out = checkpoint.directory / HELD_OUT_FILE
    return held_out if held_out.is_file() else None, given


def _of_file(
    checkpoint: OpenedCheckpoint, asked: Comparison, file: Path, references: ReferenceFile | None
) -> ParityInputs:
    config, tokenizers = checkpoint.model.config, checkpoint.tokenizers
    items = recording_items(file) if config.takes_audio else text_items(file)
    if references is not None:
        items = references.given_to(items, file)
    without = next((item for item in items if not item.references), None)
    # Pairs of other sources are scored apart, by their probability.
    wanted = [n for n in asked.metrics or () if references is None or n != PERPLEXITY]
    if wanted and without is not None:
        raise DragomanError(
            f"metric {', '.join(wanted)}: expected a reference for each input, found none for "
            f"{without.origin}"
        )
    origin = None if without is not None else file if references is None else references.path
    given = Given(asked, file, items, origin)
    features = audio_features(config)
    if features is not None:
        inputs = of_recordings(checkpoint, LogMel.of(features), given)
    else:
        assert tokenizers is not None
        inputs = of_texts(checkpoint, tokenizers, given)
    having = sum(bool(item.references) for item in items)
    if references is None and having and without is not None:  # or nobody would miss level 3
        remark = (
            f"references are not compared: found for {having} of {len(items)} inputs, none for "
            f"{without.origin}"
        )
        inputs = dataclasses.replace(inputs, remark=remark)
    return inputs


def _with_separate(
    checkpoint: OpenedCheckpoint, inputs: ParityInputs, file: Path, limit: int | None
) -> ParityInputs:
    """Inputs, and pairs of other sources and references, whose probability is compared."""
    tokenizers = checkpoint.tokenizers
    audio = checkpoint.model.config.takes_audio
    references = read_references(file, audio=audio, ids=tokenizers is None).spread(limit)
    language = inputs.source_language
    if language is None and tokenizers is not None:
        language = assumed_language(tokenizers.languages)
    separate = dataclasses.replace(references, source_language=language)
    return dataclasses.replace(inputs, references=separate)


def _of_encoder(checkpoint: OpenedCheckpoint, head: Head, asked: Comparison) -> ParityInputs:
    """Of an encoder alone, which takes no references: tabs stand between the texts of pairs."""
    tokenizers, held_out = checkpoint.tokenizers, checkpoint.directory / HELD_OUT_FILE
    file = asked.inputs
    if asked.references or asked.metrics:
        raise DragomanError(
            f"references and metrics: expected none, {checkpoint.name} is an encoder alone and "
            "decodes nothing"
        )
    if tokenizers is None and file is not None:
        raise _no_tokenizers(file, checkpoint)
    if file is None and held_out.is_file():
        file = held_out
    if file is None or tokenizers is None:
        return random_inputs(checkpoint.model, asked.limit or RANDOM_SOURCES)
    every = numbered_lines(file)
    numbered = spread(every, asked.limit)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        assert written.source is not None
        longest = checkpoint.model.config.max_source_positions
        tokenizer = InputTokenizer.of(Path(directory) / written.source, longest, head)
    lines = encoder_lines(tokenizer, head, numbered, file)
    return ParityInputs(
        described(file, len(every), len(numbered)),
        [line.tokens.ids for line in lines],
        [f"{file.name}, line {number}" for number, _ in numbered],
        lines=lines,
    )


def _no_tokenizers(file: Path, checkpoint: OpenedCheckpoint) -> DragomanError:
    return DragomanError(
        f"{file}: texts need a checkpoint with tokenizers, found none in {checkpoint.directory}"
    )


def _check_languages(checkpoint: OpenedCheckpoint, source: str | None, target: str | None) -> None:
    """
    Raises:
        LanguageError: the model does not have a language.
    """
    languages = checkpoint.tokenizers.languages if checkpoint.tokenizers else None
    for side, code in (("source", source), ("target", target)):
        if code is not None and languages is None:
            raise LanguageError(
                f"{side}_language: expected none, this model has no languages, found {code!r}"
            )
    if languages is not None and source is not None:
        languages.source_token(source)
    if languages is not None and target is not None:
        languages.target_token(target)


def _check_metrics(
    checkpoint: OpenedCheckpoint, inputs: ParityInputs, metrics: Sequence[str] | None
) -> None:
    """
    Raises:
        DragomanError: there is nothing to compute a metric with that the user wants.
        LanguageError: references are in a language that the model is not told to write.
    """
    languages = checkpoint.tokenizers.languages if checkpoint.tokenizers else None
    for name in metrics or ():
        if name != PERPLEXITY and checkpoint.tokenizers is None:
            raise DragomanError(
                f"metric {name}: expected a checkpoint with tokenizers, found none in "
                f"{checkpoint.directory}"
            )
        if (inputs.references if name == PERPLEXITY else inputs.task) is None:
            raise DragomanError(
                f"metric {name}: expected inputs with references, found {inputs.description} "
                "without"
            )
    if (inputs.references or inputs.task) and languages is not None:
        languages.target_token(inputs.target_language)
