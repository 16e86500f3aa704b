"""`dragoman run`"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from .messages import tell
from .options import backend_option, threads_option

if TYPE_CHECKING:
    from dragoman.runtime import GenerationOptions, Model, Result, Segment


class BatchSize(click.ParamType):  # type: ignore[type-arg]
    """A number, or auto: None."""

    name = "number|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == "auto":
            return None
        number: int = click.IntRange(min=1).convert(value, param, ctx)
        return number


@click.command(short_help="Decode texts or audio with a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="Limit on the tokens generated for a line [the bundle's].",
)
@click.option(
    "--max-new-tokens-per-source-token",
    type=click.FloatRange(min=0, min_open=True),
    default=math.inf,
    help="Limit relative to the source's length; the lower limit holds.",
)
@click.option(
    "--min-new-tokens",
    type=click.IntRange(min=0),
    help="Generate no end token before this many tokens [the bundle's].",
)
@click.option(
    "--language", metavar="CODE", help="Speech: spoken language, such as de or german [detected]."
)
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    help="Speech: transcribe, or translate to English [the bundle's].",
)
@click.option(
    "--timestamps/--no-timestamps",
    default=None,
    help="Speech: print a line with times for each segment, and an empty line after each file "
    "[the bundle's].",
)
@click.option(
    "--source-language",
    metavar="CODE",
    help="Language of the texts, in multilingual models [the bundle's].",
)
@click.option("--target-language", metavar="CODE", help="Language to translate to [the bundle's].")
@click.option(
    "--batch-size",
    type=BatchSize(),
    default="64",
    show_default=True,
    help="Lines to decode together, at most; auto: as many as fit the GPU's memory.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object per line: text, tokens, log-probability, finish reason.",
)
@click.option(
    "--stream",
    is_flag=True,
    help="Print tokens as soon as they are generated, line by line.",
)
@backend_option
@threads_option
def run(
    bundle: Path,
    texts: tuple[str, ...],
    max_new_tokens: int | None,
    max_new_tokens_per_source_token: float,
    min_new_tokens: int | None,
    language: str | None,
    task: str | None,
    timestamps: bool | None,
    source_language: str | None,
    target_language: str | None,
    batch_size: int | None,
    as_json: bool,
    stream: bool,
    backend: str | None,
    threads: int | None,
) -> int:
    """Decode TEXTS, or the lines of standard input, with BUNDLE: one line out for each line in.

    For a speech model, lines are paths of audio files. For a bundle without tokenizers, lines are
    token ids separated by spaces, in and out.

    A line that cannot be decoded gives an empty line, a message on standard error and, at the end,
    exit status 1; other lines are not affected.

    \b
    dragoman run bundles/g2p-en dragoman transformer
    cut -f1 words.tsv | dragoman run bundles/g2p-en --json > pronunciations.jsonl
    dragoman run bundles/whisper-tiny talk.flac --language de --timestamps
    """
    from dragoman.runtime import GenerationOptions, load

    if stream and as_json:
        raise click.UsageError("--stream and --json exclude each other")
    if stream and timestamps:
        raise click.UsageError("--stream and --timestamps exclude each other")
    options = GenerationOptions(
        max_new_tokens=max_new_tokens,
        max_new_tokens_per_source_token=max_new_tokens_per_source_token,
        min_new_tokens=min_new_tokens,
        max_batch_size=batch_size,
        source_language=source_language,
        target_language=target_language,
        language=language,
        task=task,
        timestamps=False if stream else timestamps,
    )
    groups: Iterable[Sequence[Line]] = [texts]
    if not texts:
        groups = arriving_lines(sys.stdin.buffer) if sys.stdin else []  # None: closed
    with load(bundle, threads=threads, backend=backend) as model:
        speech = model.manifest.speech
        by_default = speech is not None and speech.default_timestamps
        writer = _Writer(as_json, by_default if timestamps is None else timestamps)
        if speech is not None:
            groups = (part for lines in groups for part in _parts(lines))
        for lines in groups:
            if stream:
                _stream(model, lines, options, writer)
            else:
                _generate(model, lines, options, writer)
            sys.stdout.flush()
    return 1 if writer.rejected else 0


Line = str | UnicodeDecodeError
"""A line of input, or why it cannot be read."""


RECORDINGS = 32
"""The most recordings that are decoded before results are written."""


def _parts(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    for begin in range(0, len(lines), RECORDINGS):
        yield lines[begin : begin + RECORDINGS]


def arriving_lines(file: BinaryIO) -> Iterator[list[Line]]:
    """Groups of lines as they arrive, so that a pipe is answered without delay and a file is
    decoded in large batches."""
    rest = b""
    while chunk := os.read(file.fileno(), 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [_decoded(line) for line in lines]
    if rest:
        yield [_decoded(rest)]


def _decoded(line: bytes) -> Line:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return error


class _Writer:
    """Writes a line for each line of input, and counts those rejected."""

    def __init__(self, as_json: bool, timestamps: bool) -> None:
        self.as_json, self.timestamps = as_json, timestamps
        self.rejected = 0
        self.number = 0

    def write(self, result: Result) -> None:
        self.number += 1
        if result.error is not None:
            self.reject(result.error)
        if self.as_json:
            values = dataclasses.asdict(result)
            if result.segments is None:  # of texts
                del values["segments"], values["language"]
            click.echo(json.dumps(values, ensure_ascii=False))
            return
        if not self.timestamps:
            line = _one_line(result)
            # Speech begins with a space: its words are tokens with the space before them.
            click.echo(line if result.segments is None else line.strip())
            return
        for segment in result.segments or ():
            times = f"[{_clock(segment.start)} --> {_clock(segment.end)}]"
            click.echo(f"{times} {_one_line(segment).strip()}")
        click.echo()

    def reject(self, reason: str) -> None:
        self.rejected += 1
        tell(f"line {self.number}: {reason}")


def _one_line(output: Result | Segment) -> str:
    """The text of each line of input on one line; of a bundle without tokenizers, token ids."""
    text = " ".join(map(str, output.tokens)) if output.text is None else output.text
    return " ".join(text.splitlines())


def _clock(seconds: float) -> str:
    """Formatted as in subtitles: 01:02:03.450."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"


def _generate(
    model: Model, lines: Sequence[Line], options: GenerationOptions, writer: _Writer
) -> None:
    """Decode lines and write their results; if the device fails, unfinished lines are rejected."""
    from dragoman.runtime import Result, UnfinishedError

    sources = [_source(model, line) for line in lines]
    good = [source for source in sources if not isinstance(source, _Bad)]
    lost = None
    try:
        results = model.generate(good, options)
    except UnfinishedError as error:
        lost = error
        undone = Result("", (), 0.0, "rejected", "not decoded: the device failed")
        results = [error.finished.get(index, undone) for index in range(len(good))]
    following = iter(results)
    for source in sources:
        if isinstance(source, _Bad):
            writer.write(Result("", (), 0.0, "rejected", source.reason))
        else:
            writer.write(next(following))
    if lost is not None:
        raise lost


def _stream(
    model: Model, lines: Sequence[Line], options: GenerationOptions, writer: _Writer
) -> None:
    from dragoman.runtime import RejectedError

    for line in lines:
        writer.number += 1
        source = _source(model, line)
        try:
            if isinstance(source, _Bad):
                raise RejectedError(source.reason)
            for index, token in enumerate(model.stream(source, options)):
                piece = f"{' ' if index else ''}{token.id}" if token.text is None else token.text
                click.echo(piece, nl=False)
                sys.stdout.flush()
        except RejectedError as error:
            writer.reject(str(error))
        click.echo()


@dataclasses.dataclass(frozen=True)
class _Bad:
    """A line that is not a source, and why."""

    reason: str


def _source(model: Model, line: Line) -> str | list[int] | _Bad:
    """The source that a line states: its text or, for a bundle without tokenizers, token ids."""
    if isinstance(line, UnicodeDecodeError):
        return _Bad(f"expected UTF-8 text: {line.reason} at byte {line.start}")
    if model.manifest.tokenizers is not None or model.manifest.speech is not None:
        return line
    try:
        return [int(word) for word in line.split()]
    except ValueError:
        return _Bad("expected token ids separated by spaces: this bundle has no tokenizers")
