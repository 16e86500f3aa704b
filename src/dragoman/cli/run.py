"""The commands `dragoman run` and `dragoman detect-language`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from dragoman.errors import DragomanError
from dragoman.files.text_lines import Line, UnknownCharacters, decoded_line, source_of
from dragoman.runtime import (
    GenerationOptions,
    Manifest,
    Model,
    RejectedError,
    Result,
    TranscriptUpdate,
    UnfinishedError,
    load,
)
from dragoman.runtime.arguments import with_prefix
from dragoman.runtime.audio.voice_activity import RATE, detector_is_installed
from dragoman.runtime.decoding.results import SUBTITLE_FORMATS, SubtitleFormat
from dragoman.runtime.decoding.strategies import strategies
from dragoman.runtime.documents import DOCUMENT_FORMS
from dragoman.runtime.model import parts_of
from dragoman.runtime.texts.front_end import TextFrontEnd

from .run_output import (
    Aligner,
    Output,
    Transcript,
    TranscriptForm,
    Updates,
    best,
    check_aligned_options,
    in_subtitles,
    json_of_texts,
    plain,
    timed,
    timed_words,
    whole,
    write_document,
)
from .shared.decoding_options import (
    check_prefix_file,
    decoding_options,
    for_bundle,
    output,
    prefix_file_option,
)
from .shared.options import (
    PATH,
    SectionedCommand,
    backend_option,
    bundle_argument,
    device_option,
    loading_options,
    option_names,
    threads_option,
)
from .shared.terminal import in_parts, notify, shown_progress, standard_input

RECORDINGS = 32
"""The most recordings that are transcribed in one call."""


@click.command(cls=SectionedCommand)
@bundle_argument
@click.argument("texts", nargs=-1)
@decoding_options
@prefix_file_option
@output("--scores", is_flag=True, help="Write the score and a tab before each output.")
@output(
    "--json",
    "as_json",
    is_flag=True,
    help="Write a JSON object for each line: outputs, scores, error.",
)
@output(
    "--format",
    "document_format",
    type=click.Choice(tuple(dict.fromkeys((*SUBTITLE_FORMATS, *DOCUMENT_FORMS)))),
    metavar="NAME",
    help="Of speech: srt, vtt, tsv, lrc; of a file of text: html, srt, txt.",
)
@output(
    "--resume", metavar="FILE", type=PATH, help="Speech: keep transcripts in FILE; go on after it."
)
@output("--stream", is_flag=True, help="Write tokens as soon as they are selected; without beams.")
@output(
    "--alignments",
    is_flag=True,
    help="Write a tab and the word alignment (0-0 1-2) after each output.",
)
@output(
    "--replace-unknown",
    is_flag=True,
    help="Replace unknown tokens by the source words aligned with them.",
)
@loading_options
@click.pass_context
def run(
    context: click.Context,
    /,
    bundle: Path,
    texts: tuple[str, ...],
    prefix_file: Path | None,
    scores: bool,
    as_json: bool,
    document_format: str | None,
    resume: Path | None,
    stream: bool,
    alignments: bool,
    replace_unknown: bool,
    loading: dict[str, Any],
    greedy: bool,
    **given_options: Any,
) -> int:
    """Generate a line for each of TEXTS, or lines of standard input; speech: paths of audio files.

    \b
    dragoman run bundles/en-de "Where is the dragoman?" --beams 4 --n-best 3 --scores
    """
    check_prefix_file(prefix_file, given_options)
    written = {"--json": as_json, "--scores": scores, "--stream": stream}
    if stream:
        _check_stream(given_options, written | {"--resume": resume is not None})
    if given_options["alternatives"] and not as_json:
        raise click.UsageError("--alternatives: expected with --json, which has a place for them")
    if document_format is not None:
        _check_format(texts, given_options, written)
    check_aligned_options(
        given_options, stream=stream, alignments=alignments, replace=replace_unknown
    )
    if alignments and as_json:
        raise click.UsageError("--alignments and --json exclude each other")
    with option_names(context.command):
        options = GenerationOptions(**given_options)
    groups = [texts] if texts else standard_input()
    with load(bundle, **loading) as model:
        manifest, rows = model.manifest, model.backend.limits.rows
        form = None
        if manifest.speech is not None and not stream:
            subtitle_format = _subtitle_format(document_format, texts)
            if subtitle_format is not None and not options.word_timestamps:
                options = options.replace(timestamps=True)
            form = _transcript_form(manifest, options, subtitle_format, scores, as_json)
            _warn_without_detector(manifest, options, greedy=greedy)
        elif resume is not None:
            raise click.UsageError("--resume: for speech models; a text is translated at once")
        with option_names(context.command):
            once = greedy or (stream and manifest.speech is not None)
            options = for_bundle(options, manifest, greedy=once, rows=rows)
            _check(model, options, stream=stream)
            if form is None and document_format is not None:
                if alignments or replace_unknown or prefix_file is not None:
                    name = "--prefix-file" if prefix_file else "--alignments, --replace-unknown"
                    raise click.UsageError(f"{name}: expected without --format")
                return write_document(model, texts[0] if texts else None, document_format, options)
        aligner = None
        if alignments or replace_unknown:
            aligner = Aligner(model, options, alignments=alignments, replace=replace_unknown)
            with option_names(context.command):
                aligner.check()
        count = options.num_return_sequences
        results = Output(json_of_texts if as_json else best(count, scores=scores))
        unknown = UnknownCharacters()
        with _prefixes(prefix_file, manifest) as prefixes:
            for lines in groups if form is None else in_parts(groups, RECORDINGS):
                inputs = list(_inputs(model, lines, options, prefixes, results.number))
                if stream:
                    _stream(model, inputs, results, unknown)
                elif form is not None:
                    _transcribe(model, inputs, options, form, results, resume)
                else:
                    _generate(model, inputs, results, unknown, aligner)
                sys.stdout.flush()
            if prefixes is not None and next(prefixes, None) is not None:
                raise DragomanError(
                    f"--prefix-file: expected a line for each of {results.number} sources, found "
                    "more"
                )
        if unknown.found:
            notify(f"Warning: {unknown.summary()}")
    return 1 if results.rejected else 0


@click.command("detect-language", cls=SectionedCommand, short_help="Tell which language is spoken.")
@bundle_argument
@click.argument("recordings", nargs=-1, required=True)
@click.option("--vad/--no-vad", default=None, help="Leave out what is not speech [yes].")
@backend_option
@device_option
@threads_option
def detect_language(
    bundle: Path, recordings: tuple[str, ...], vad: bool | None, **loading: Any
) -> int:
    """Write the language that is spoken at the beginning of each recording, and its probability.

    \b
    dragoman detect-language bundles/whisper-base interview.m4a
    """
    rejected = 0
    with load(bundle, **loading) as model:
        for number, found in enumerate(model.detect_language(recordings, vad=vad), 1):
            click.echo(
                "" if found.language is None else f"{found.language}\t{found.probability:.4f}"
            )
            if found.error is not None or found.language is None:
                rejected += 1
                notify(f"line {number}: {found.error or 'nobody speaks'}")
    return 1 if rejected else 0


def _exclude(option: str, others: dict[str, Any]) -> None:
    for name, given in others.items():
        if given:
            raise click.UsageError(f"{option} and {name} exclude each other")


def _check_format(
    texts: Sequence[str], given_options: dict[str, Any], written: dict[str, bool]
) -> None:
    _exclude("--format", written)
    if len(texts) > 1:
        raise click.UsageError(f"--format: expected one file, found {len(texts)}")
    if given_options["timestamps"] is False:
        raise click.UsageError("--format: expected without --no-timestamps: subtitles have times")


def _subtitle_format(name: str | None, recordings: Sequence[str]) -> SubtitleFormat | None:
    if name is None:
        return None
    if not recordings:
        raise click.UsageError("--format: expected one recording, found none")
    for known in SUBTITLE_FORMATS:
        if name == known:
            return known
    raise click.UsageError(
        f"--format: expected one of {', '.join(SUBTITLE_FORMATS)} for speech, found {name}"
    )


def _check_stream(given_options: dict[str, Any], written: dict[str, bool]) -> None:
    _exclude(
        "--stream",
        {
            "--json": written["--json"],
            "--timestamps": given_options["timestamps"],
            "--words": given_options["word_timestamps"],
            "--fallback": given_options["fallback"],
            "--cut-at-silence": given_options["cut_at_silence"],
            "--scores": written["--scores"],
            "--resume": written["--resume"],
            "--split": given_options["split"],
            "--n-best": given_options["num_return_sequences"] > 1,
        },
    )
    given_options["timestamps"] = False


def _check(model: Model, options: GenerationOptions, *, stream: bool) -> None:
    model.generate([], options)
    if stream:
        beams = strategies(options, model.manifest)[0].width
        if beams > 1:
            raise click.UsageError(
                f"--stream: expected --beams 1, found {beams} beams, whose tokens are not final "
                "until the end"
            )


def _transcript_form(
    manifest: Manifest,
    options: GenerationOptions,
    subtitle_format: SubtitleFormat | None,
    scores: bool,
    as_json: bool,
) -> TranscriptForm:
    speech = manifest.speech
    if as_json:
        return whole(json_of_texts)
    if subtitle_format is not None:
        return in_subtitles(subtitle_format)
    if options.word_timestamps:
        if scores:
            raise click.UsageError("--scores: expected without --words, which have no scores")
        return timed_words
    by_default = speech is not None and speech.default_timestamps
    if not (by_default if options.timestamps is None else options.timestamps):
        return whole(best(options.num_return_sequences, scores=True)) if scores else plain
    if scores:
        raise click.UsageError("--scores: expected --no-timestamps: segments have no scores")
    return timed


def _warn_without_detector(manifest: Manifest, options: GenerationOptions, *, greedy: bool) -> None:
    usable = manifest.audio is not None and manifest.audio.sampling_rate == RATE
    if usable and options.vad is None and not greedy and not detector_is_installed():
        notify(
            "Warning: silence is transcribed, too, which invents text: pip install 'dragoman[vad]'"
        )


Input = tuple[str | list[int], GenerationOptions] | DragomanError
"""A source and its options, or why a line cannot be decoded."""


@contextmanager
def _prefixes(path: Path | None, manifest: Manifest) -> Iterator[Iterator[Line] | None]:
    if path is None:
        yield None
        return
    if manifest.speech is not None:
        raise click.UsageError("--prefix-file: for text models; a speech model takes --prefix")
    with path.open("rb") as file:
        yield (decoded_line(line.removesuffix(b"\n")) for line in file)


def _inputs(
    model: Model,
    lines: Sequence[Line],
    options: GenerationOptions,
    prefixes: Iterator[Line] | None,
    done: int,
) -> Iterator[Input]:
    takes_text = _takes_words(model)
    for number, line in enumerate(lines, done):
        source = _source(model, line)
        own: GenerationOptions | DragomanError = options
        if prefixes is not None:
            prefix = next(prefixes, None)
            if prefix is None:
                raise DragomanError(
                    f"--prefix-file: expected a line for each source, found {number} for more"
                )
            own = with_prefix(options, prefix, takes_text=takes_text)
        if isinstance(source, DragomanError):
            yield source
        elif isinstance(own, DragomanError):
            yield own
        else:
            yield source, own


def _generate(
    model: Model,
    inputs: Sequence[Input],
    output: Output,
    unknown: UnknownCharacters,
    aligner: Aligner | None = None,
) -> None:
    good = [each for each in inputs if not isinstance(each, DragomanError)]
    lost = None
    try:
        results = model.generate([source for source, _ in good], [own for _, own in good])
    except UnfinishedError as error:
        lost = error
        undone = _rejected(model, "not decoded: the device failed")
        results = [error.finished.get(index, undone) for index in range(len(good))]
    following = iter(results)
    for (source, _), result in zip(good, results, strict=True):
        if isinstance(source, str) and result.error is None:
            unknown.add(source, result.unknown_characters)
    for each in inputs:
        if isinstance(each, DragomanError):
            output.write(_rejected(model, str(each)))
        elif aligner is None:
            output.write(next(following))
        else:
            result, pairs = aligner.replaced(each[0], next(following)), None
            if aligner.alignments:
                result, pairs = aligner.aligned(each[0], result)
            output.write(result, pairs)
    if lost is not None:
        raise lost


def _transcribe(
    model: Model,
    inputs: Sequence[Input],
    options: GenerationOptions,
    form: TranscriptForm,
    output: Output,
    resume: Path | None,
) -> None:
    sources = [each[0] for each in inputs if not isinstance(each, DragomanError)]
    done: dict[int, float] = {}
    with nullcontext() if sys.stdout.isatty() else shown_progress() as progress:

        def show(update: TranscriptUpdate) -> None:
            done[update.index] = update.done
            if progress is not None:
                progress.advance(int(100 * sum(done.values()) / len(sources)), 100)

        if progress is not None:
            progress.stage("transcribing")
        lost = _rejected(model, "not decoded: the device failed")
        updates = Updates(model.transcribe(sources, options, journal=resume), show, lost)
        index = 0
        for each in inputs:
            if isinstance(each, DragomanError):
                update = TranscriptUpdate(0, (), 1.0, _rejected(model, str(each)))
                output.write_transcript(Transcript(Updates(iter([update]), show, lost), 0), form)
            else:
                output.write_transcript(Transcript(updates, index), form)
                index += 1
    if updates.failure is not None:
        raise updates.failure


def _stream(
    model: Model, inputs: Sequence[Input], output: Output, unknown: UnknownCharacters
) -> None:
    front_end = parts_of(model).front_end
    for each in inputs:
        output.number += 1
        try:
            if isinstance(each, DragomanError):
                raise RejectedError(str(each))
            source, own = each
            if isinstance(source, str) and isinstance(front_end, TextFrontEnd):
                encoded, truncated = front_end.encoded(source, own)
                if truncated:
                    notify(f"line {output.number}: the source was truncated")
                unknown.add(source, encoded.unknown)
                source = encoded.tokens
            for index, token in enumerate(model.stream(source, own)):
                piece = f"{' ' if index else ''}{token.id}" if token.text is None else token.text
                click.echo("" if token.is_end else piece, nl=False)
                sys.stdout.flush()
        except RejectedError as error:
            output.reject(str(error))
        click.echo()


def _source(model: Model, line: Line) -> str | list[int] | DragomanError:
    if isinstance(line, UnicodeDecodeError) and model.manifest.speech is not None:
        return os.fsdecode(line.object)  # names of files need not be UTF-8
    return source_of(line, takes_text=_takes_words(model))


def _takes_words(model: Model) -> bool:
    return model.manifest.tokenizers is not None or model.manifest.speech is not None


def _rejected(model: Model, reason: str) -> Result:
    return Result("" if _takes_words(model) else None, (), 0.0, "rejected", reason)
