"""Chooses the inputs of a comparison: a user's, held-out data, a sentence or random tokens.

Texts and recordings of a file are turned into inputs as a model reads them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path

from dragoman.errors import DragomanError, shown
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.exporter import audio_features, speech_tokens
from dragoman.export.exporter import head as described_head
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.metrics import PERPLEXITY, Metric, metrics_that_judge
from dragoman.reference_model import EncoderModel
from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
from dragoman.runtime.audio import LogMel
from dragoman.runtime.encoding.tokenizer import InputTokenizer
from dragoman.runtime.format.texts import LanguageError, Languages
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec
from dragoman.settings.head import Head
from dragoman.verification.inputs.items import Comparison

from .items import (
    Item,
    ItemFile,
    ReferenceFile,
    References,
    described,
    read_references,
    recording_items,
    spread,
    text_items,
)
from .parity_inputs import (
    RANDOM_SOURCES,
    Decode,
    ParityInputs,
    Task,
    random_inputs,
    sentence_inputs,
    text_metrics,
)
from .sources import assumed_language, encoder_lines, numbered_lines, source_tokens, windows_of


def inputs_for(checkpoint: OpenedCheckpoint, comparison: Comparison) -> ParityInputs:
    """Read the inputs of a comparison.

    They are the lines of a file or windows of audio files, else the sources of references, the
    checkpoint's held-out data, or the default ones: for speech with tokenizers beginnings of a
    sentence, or random sound if the extra that reads audio is missing; else random inputs.

    Raises:
        DragomanError: a file cannot be used with this checkpoint, or a metric cannot be computed.
    """
    config, tokenizers = checkpoint.model.config, checkpoint.tokenizers
    head = described_head(config)
    if head is not None:
        return _of_encoder(checkpoint, head, comparison)
    if comparison.inputs is not None and tokenizers is None and not config.takes_audio:
        raise _no_tokenizers(comparison.inputs, checkpoint)
    _check_languages(checkpoint, comparison.source_language, comparison.target_language)
    given = None
    if comparison.references is not None:
        given = ReferenceFile.read(comparison.references, audio=config.takes_audio)
    file, given = _file(checkpoint, comparison, given)
    if file is None:
        inputs = _default_inputs(checkpoint, comparison.limit or RANDOM_SOURCES)
        if given is not None and given.pairs is None:
            raise DragomanError(
                f"{given.path}: expected lines of a source, a tab and a reference, or inputs for "
                "only references; found only references, and no inputs"
            )
    else:
        inputs = _of_file(checkpoint, comparison, file, given)
    if given is not None and inputs.references is None and inputs.task is None:
        inputs = _with_separate(checkpoint, inputs, given.path, comparison.limit)
    inputs = replace(inputs, target_language=comparison.target_language)
    _check_metrics(checkpoint, inputs, comparison.metrics)
    return inputs


def _file(
    checkpoint: OpenedCheckpoint, comparison: Comparison, given: ReferenceFile | None
) -> tuple[Path | None, ReferenceFile | None]:
    if comparison.inputs is not None or checkpoint.tokenizers is None:
        return comparison.inputs, given
    has_pairs = given is not None and given.pairs is not None
    if given is not None and has_pairs and text_metrics(checkpoint, comparison.metrics):
        return given.path, None
    held_out = checkpoint.directory / HELD_OUT_FILE
    return held_out if held_out.is_file() else None, given


def _default_inputs(checkpoint: OpenedCheckpoint, count: int) -> ParityInputs:
    hears = checkpoint.model.config.takes_audio and checkpoint.tokenizers is not None
    if hears and all(map(find_spec, ("av", "soxr"))):  # the extra that reads audio files
        return sentence_inputs(checkpoint.model, count)
    return random_inputs(checkpoint.model, count)


def _of_file(
    checkpoint: OpenedCheckpoint,
    comparison: Comparison,
    file: Path,
    references: ReferenceFile | None,
) -> ParityInputs:
    config, tokenizers = checkpoint.model.config, checkpoint.tokenizers
    items = recording_items(file) if config.takes_audio else text_items(file)
    if references is not None:
        items = references.given_to(items, file)
    without = next((item for item in items if not item.references), None)
    # Only the probability of pairs of other sources is compared.
    names = [n for n in comparison.metrics or () if references is None or n != PERPLEXITY]
    if names and without is not None:
        raise DragomanError(
            f"metric {', '.join(names)}: expected a reference for each input, found none for "
            f"{without.origin}"
        )
    origin = None if without is not None else file if references is None else references.path
    given = ItemFile(comparison, file, items, origin)
    features = audio_features(config)
    if features is not None:
        inputs = of_recordings(checkpoint, LogMel.of(features), given)
    else:
        assert tokenizers is not None
        inputs = of_texts(checkpoint, tokenizers, given)
    having = sum(bool(item.references) for item in items)
    if references is None and having and without is not None:  # or level 3 would be missed
        remark = (
            f"references are not compared: found for {having} of {len(items)} inputs, none for "
            f"{without.origin}"
        )
        inputs = replace(inputs, remark=remark)
    return inputs


def _with_separate(
    checkpoint: OpenedCheckpoint, inputs: ParityInputs, file: Path, limit: int | None
) -> ParityInputs:
    tokenizers = checkpoint.tokenizers
    audio = checkpoint.model.config.takes_audio
    references = read_references(file, audio=audio, ids=tokenizers is None).spread(limit)
    language = inputs.source_language
    if language is None and tokenizers is not None:
        language = assumed_language(tokenizers.languages)
    separate = replace(references, source_language=language)
    return replace(inputs, references=separate)


def _of_encoder(checkpoint: OpenedCheckpoint, head: Head, comparison: Comparison) -> ParityInputs:
    tokenizers, held_out = checkpoint.tokenizers, checkpoint.directory / HELD_OUT_FILE
    file = comparison.inputs
    if comparison.references or comparison.metrics:
        raise DragomanError(
            f"references and metrics: expected none, since {checkpoint.name} is an encoder-only "
            "model and decodes nothing"
        )
    if tokenizers is None and file is not None:
        raise _no_tokenizers(file, checkpoint)
    if file is None and held_out.is_file():
        file = held_out
    if file is None or tokenizers is None:
        return random_inputs(checkpoint.model, comparison.limit or RANDOM_SOURCES)
    every = numbered_lines(file)
    numbered = spread(every, comparison.limit)
    with tempfile.TemporaryDirectory() as directory:
        written = tokenizers.write(ScratchWriter(Path(directory)))
        assert written.source is not None
        longest = checkpoint.model.config.max_source_positions
        tokenizer = InputTokenizer(Path(directory) / written.source, longest, head, written.prompts)
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
    languages = checkpoint.tokenizers.languages if checkpoint.tokenizers else None
    for side, code in (("source", source), ("target", target)):
        if code is None:
            continue
        if languages is None:
            raise LanguageError(
                f"{side}_language: expected none, this model has no languages, found {shown(code)}"
            )
        if side == "source":
            languages.source_token(code)  # or raise: it is unknown
        else:
            languages.target_token(code)


def _check_metrics(
    checkpoint: OpenedCheckpoint, inputs: ParityInputs, metrics: Sequence[str] | None
) -> None:
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
        short = [item for item, each in zip(items, windows, strict=True) if len(each) == 1]
        if short:
            references = References.of(short, given.origin_of_references(len(short)))
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


def _decode(checkpoint: OpenedCheckpoint) -> Decode | None:
    assert not isinstance(checkpoint.model, EncoderModel)
    speech = speech_tokens(checkpoint.model)
    if checkpoint.tokenizers is None or speech is None:
        return None
    codec, begin = codec_of(checkpoint.tokenizers), speech.timestamp_begin
    return lambda tokens: codec.decode([t for t in tokens if begin is None or t < begin])
