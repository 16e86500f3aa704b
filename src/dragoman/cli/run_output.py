"""Formats the output of `dragoman run` for each input line."""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError
from dragoman.files.regular_files import read_regular
from dragoman.files.text_lines import one_line, undecodable
from dragoman.runtime import (
    DeviceLostError,
    GenerationOptions,
    Hypothesis,
    Model,
    Result,
    Segment,
    TranscriptUpdate,
    translate_document,
)
from dragoman.runtime.arguments import check_able
from dragoman.runtime.attention.alignment import NO_WORDS
from dragoman.runtime.decoding.results import SubtitleFormat, json_line, span, subtitle_entries
from dragoman.runtime.documents import DOCUMENT_FORMS

from .shared.terminal import notify


class Output:
    """Writes results in the order of the input lines, and counts rejected lines."""

    def __init__(self, lines_of: Callable[[Result], Iterable[str]]) -> None:
        self._lines_of = lines_of
        self.rejected = 0
        self.number = 0

    def write(self, result: Result, pairs: tuple[tuple[int, int], ...] | None = None) -> None:
        """Write the lines of a result."""
        self.number += 1
        self._notify(result)
        if result.truncated:
            notify(f"line {self.number}: the source was truncated")
        lines = self._lines_of(result)
        for line in lines if pairs is None else with_pairs(lines, pairs):
            click.echo(line)

    def write_transcript(self, transcript: Transcript, form: TranscriptForm) -> None:
        """Write a transcript while it arrives."""
        self.number += 1
        for piece in form(transcript):
            click.echo(piece, nl=False)
            sys.stdout.flush()
        self._notify(transcript.result)

    def _notify(self, result: Result) -> None:
        if result.error is not None:
            self.reject(result.error)
        for warning in result.warnings:
            notify(f"line {self.number}: {warning}")

    def reject(self, reason: str) -> None:
        """Report that a line was rejected."""
        self.rejected += 1
        notify(f"line {self.number}: {reason}")


def best(count: int, *, scores: bool) -> Callable[[Result], Iterator[str]]:
    """Return a formatter of a result as `count` lines, best first; missing ones are empty."""

    def lines(result: Result) -> Iterator[str]:
        decoded = result.finish_reason in ("end", "length")
        outputs: list[Hypothesis | Result] = [*result.hypotheses] or [result] * decoded
        for output in outputs:
            score = f"{output.score:.4f}\t" if scores else ""
            line = one_line(output.text, output.tokens)
            yield score + (line if result.segments is None else line.strip())
        yield from [""] * (count - len(outputs))

    return lines


def json_of_texts(result: Result) -> Iterator[str]:
    """Yield one JSON object with all outputs."""
    yield json_line(result)


class Transcript:
    """The transcript of a recording, whose segments arrive one after another."""

    result: Result
    """The whole output, once all segments have arrived."""

    def __init__(self, updates: Updates, index: int) -> None:
        self._updates, self._index = updates, index

    def __iter__(self) -> Iterator[Segment]:
        result = None
        while result is None:
            update = self._updates.next_of(self._index)
            yield from update.segments
            result = update.result
        self.result = result


TranscriptForm = Callable[[Transcript], Iterator[str]]
"""Formats a transcript as pieces of text, as its segments arrive."""


class Updates:
    """The updates of a call, sorted by recording.

    Args:
        lost: the result of unfinished recordings when the device fails
    """

    def __init__(
        self,
        updates: Iterator[TranscriptUpdate],
        on_update: Callable[[TranscriptUpdate], None],
        lost: Result,
    ) -> None:
        self._updates, self._on_update, self._lost = updates, on_update, lost
        self._waiting: dict[int, deque[TranscriptUpdate]] = defaultdict(deque)
        self.failure: DeviceLostError | None = None
        """How the device failed."""

    def next_of(self, index: int) -> TranscriptUpdate:
        """Wait for the next update of a recording."""
        while not self._waiting[index]:
            try:
                update = next(self._updates)
            except DeviceLostError as error:
                self.failure = error
            if self.failure is not None:
                return TranscriptUpdate(index, (), 1.0, self._lost)
            self._on_update(update)
            self._waiting[update.index].append(update)
        return self._waiting[index].popleft()


def plain(transcript: Transcript) -> Iterator[str]:
    """Yield the text of a transcript on one line."""
    line, spaces = "", ""
    for segment in transcript:
        text = one_line(segment.text, segment.tokens)
        text = spaces + (f" {text}" if segment.text is None else text)
        text = text if line else text.lstrip()
        line = line or text
        spaces = text[len(text.rstrip()) :]
        yield text.rstrip()
    yield "\n"


def timed(transcript: Transcript) -> Iterator[str]:
    """Yield a line for each segment of speech, then an empty line."""
    for segment in transcript:
        yield f"[{span(segment)}] {one_line(segment.text, segment.tokens).strip()}\n"
    yield "\n"


def timed_words(transcript: Transcript) -> Iterator[str]:
    """Yield a line for each word of speech, then an empty line."""
    for segment in transcript:
        for word in segment.words or ():
            yield f"[{span(word)}] {one_line(word.text, ()).strip()}\n"
    yield "\n"


def in_subtitles(form: SubtitleFormat) -> TranscriptForm:
    """Return a function that formats a transcript as subtitles; a rejected one has none."""

    def entries(transcript: Transcript) -> Iterator[str]:
        segments = iter(transcript)
        first = list(islice(segments, 1))
        if first or transcript.result.error is None:
            yield from subtitle_entries(chain(first, segments), form)

    return entries


def whole(lines_of: Callable[[Result], Iterable[str]]) -> TranscriptForm:
    """Return a function that formats a transcript when it is complete."""

    def lines(transcript: Transcript) -> Iterator[str]:
        for _ in transcript:
            pass
        result = transcript.result
        for line in lines_of(dataclasses.replace(result, segments=result.segments or ())):
            yield f"{line}\n"

    return lines


DOCUMENT_BYTES = 64 << 20
"""The most for a document, as for a request of the server."""


def write_document(model: Model, path: str | None, form: str, options: GenerationOptions) -> int:
    """Translate a document and write it to standard output."""
    known = {each: each for each in DOCUMENT_FORMS}
    if form not in known:
        raise click.UsageError(
            f"--format: expected one of {', '.join(known)} for texts, found {form}"
        )
    if path is None:
        content = sys.stdin.buffer.read(DOCUMENT_BYTES + 1) if sys.stdin else b""
        if len(content) > DOCUMENT_BYTES:
            raise DragomanError(
                f"standard input: expected at most {DOCUMENT_BYTES} bytes, found more"
            )
    else:
        content = read_regular(Path(path), DOCUMENT_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise DragomanError(undecodable(content[error.start], error.start, line)) from error
    translated = translate_document(model, text, known[form], options)
    for warning in translated.warnings:
        notify(f"Warning: {warning}")
    click.echo(translated.text.encode(), nl=False)
    return 0


Pairs = tuple[tuple[int, int], ...]
"""A word alignment: the numbers of a source word and a target word, in pairs."""


def check_aligned_options(
    given_options: dict[str, Any], *, stream: bool, alignments: bool, replace: bool
) -> None:
    """Check that the options support word alignments."""
    for name, given in (("--alignments", alignments), ("--replace-unknown", replace)):
        if given and (
            stream
            or given_options["num_return_sequences"] > 1
            or given_options["timestamps"]
            or given_options["split"]
        ):
            raise click.UsageError(
                f"{name}: expected without --stream, --n-best, --timestamps and --split: it is of "
                "one output"
            )


class Aligner:
    """Adds word alignments to results, or replaces unknown tokens."""

    def __init__(
        self, model: Model, options: GenerationOptions, *, alignments: bool, replace: bool
    ) -> None:
        self._model, self.alignments, self._replace = model, alignments, replace
        self._reading: dict[str, Any] = {
            "source_language": options.source_language,
            "target_language": options.target_language,
            "split_special_tokens": options.split_special_tokens,
            "truncate": options.truncate,
        }
        self._skips_special_tokens = options.skip_special_tokens

    def check(self) -> None:
        """Check that the bundle can align words, before the first line arrives."""
        check_able(self._model.manifest, "replace_unknown")
        if self._replace and self._model.manifest.tokenizers is None:
            raise DragomanError(NO_WORDS)
        self._model.align([], **self._reading)
        self._model.check_attention()

    def replaced(self, source: Any, result: Result) -> Result:
        """Replace unknown tokens by source words, if requested; a failure is the result's error."""
        if not self._replace or result.error is not None or not result.hypotheses:
            return result
        try:
            text = self._model.replace_unknown(
                source, result, skip_special_tokens=self._skips_special_tokens, **self._reading
            )
        except DragomanError as error:
            return dataclasses.replace(result, error=f"--replace-unknown: {error}")
        first, *others = result.hypotheses
        hypotheses = (dataclasses.replace(first, text=text), *others)
        return dataclasses.replace(result, text=text, hypotheses=hypotheses)

    def aligned(self, source: Any, result: Result) -> tuple[Result, Pairs]:
        """Return the result and its alignment; the result has an error if alignment fails."""
        if result.error is not None or not result.tokens:
            return result, ()
        try:
            (found,) = self._model.align(
                [(source, result.tokens)], unknown_replaced=self._replace, **self._reading
            )
            reason = found.error
        except DragomanError as error:
            return dataclasses.replace(result, error=f"--alignments: {error}"), ()
        if reason is not None:
            result = dataclasses.replace(result, error=f"--alignments: {reason}")
        return result, found.pairs


def with_pairs(lines: Iterable[str], pairs: Pairs) -> Iterator[str]:
    """Append a tab and an alignment in Pharaoh format to lines; empty lines stay empty."""
    aligned = " ".join(f"{source}-{target}" for source, target in pairs)
    for line in lines:
        yield f"{line}\t{aligned}" if line else ""
