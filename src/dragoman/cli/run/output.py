"""What `dragoman run` writes for each line of input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dragoman.source_lines import one_line

from ..messages import tell
from .alignments import with_pairs

if TYPE_CHECKING:
    from dragoman.runtime import Hypothesis, Result


class Output:
    """Writes results in the order of the lines of input, and counts the lines rejected.

    Args:
        lines_of: what is written for a result
    """

    def __init__(self, lines_of: Callable[[Result], Iterable[str]]) -> None:
        self._lines_of = lines_of
        self.rejected = 0
        self.number = 0

    def write(self, result: Result, pairs: tuple[tuple[int, int], ...] | None = None) -> None:
        """
        Args:
            pairs: which words of source and output are aligned; None: not asked for
        """
        self.number += 1
        if result.error is not None:
            self.reject(result.error)
        lines = self._lines_of(result)
        for line in lines if pairs is None else with_pairs(lines, pairs):
            click.echo(line)

    def reject(self, reason: str) -> None:
        self.rejected += 1
        tell(f"line {self.number}: {reason}")


def best(count: int, *, scores: bool) -> Callable[[Result], Iterator[str]]:
    """`count` lines for each input, the best output first; empty ones in place of what there is
    not.

    Args:
        scores: a score and a tab stand in front of each
    """

    def lines(result: Result) -> Iterator[str]:
        decoded = result.finish_reason in ("end", "length")
        outputs: list[Hypothesis | Result] = [*result.hypotheses] or [result] * decoded
        for output in outputs:
            score = f"{output.score:.4f}\t" if scores else ""
            line = one_line(output.text, output.tokens)
            # Speech begins with a space: its words are tokens with the space before them.
            yield score + (line if result.segments is None else line.strip())
        yield from [""] * (count - len(outputs))

    return lines


def timed(result: Result) -> Iterator[str]:
    """A line for each segment of speech, and an empty one."""
    for segment in result.segments or ():
        times = f"[{_clock(segment.start)} --> {_clock(segment.end)}]"
        yield f"{times} {one_line(segment.text, segment.tokens).strip()}"
    yield ""


def json_of_texts(result: Result) -> Iterator[str]:
    """One object, with all outputs."""
    from dragoman.runtime.decoding.plain import result_data

    yield json.dumps(result_data(result), ensure_ascii=False, allow_nan=False)


def json_of_speech(result: Result) -> Iterator[str]:
    """One object, with all segments: none of a line that is no path."""
    yield from json_of_texts(replace(result, segments=result.segments or ()))


def _clock(seconds: float) -> str:
    """Formatted as in subtitles: 01:02:03.450."""
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}.{rest % 1000:03}"
