"""Standard input, standard error and progress bars of the commands."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dragoman.files.text_lines import Line, decoded_line, printable
from dragoman.progress import resident_mb


def notify(message: str, *, err: bool = True) -> None:
    """Print a message to standard error, or output, with control characters escaped."""
    click.echo(printable(message), err=err)


def arriving_lines(file: BinaryIO) -> Iterator[list[Line]]:
    """Yield groups of lines as they arrive: few of a pipe, without delay, many of a file."""
    rest = b""
    while chunk := os.read(file.fileno(), 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [decoded_line(line) for line in lines]
    if rest:
        yield [decoded_line(rest)]


def standard_input() -> Iterator[list[Line]]:
    """Yield groups of lines of standard input as they arrive; none if it is closed."""
    return arriving_lines(sys.stdin.buffer) if sys.stdin else iter(())


def in_parts(groups: Iterable[Sequence[Line]], most: int) -> Iterator[Sequence[Line]]:
    """Split groups into parts of at most `most` lines."""
    for lines in groups:
        for begin in range(0, len(lines), most):
            yield lines[begin : begin + most]


class TerminalProgress:
    """Shows the current stage on standard error, with a bar once its length is known."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def stage(self, description: str) -> None:
        """Begin a stage of unknown length."""
        self._progress.reset(self._task, total=None, description=f"{description} ...")

    def advance(self, done: int, total: int) -> None:
        """Show the progress of the stage."""
        self._progress.update(self._task, completed=done, total=total)


class _IfCounted(ProgressColumn):
    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> Text:
        shown = self._column(task) if task.total is not None else ""
        return shown  # type: ignore[return-value]  # any renderable will do


class _Taken(ProgressColumn):
    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()

    def render(self, task: Task) -> Text:
        present, _ = resident_mb()
        memory = "" if math.isnan(present) else f", {present / 1000:.1f} GB"
        return Text(f"{time.monotonic() - self._began:.0f} s{memory}")


@contextlib.contextmanager
def shown_progress() -> Iterator[TerminalProgress]:
    """Show progress within the context, if standard error is a terminal."""
    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        *map(_IfCounted, columns),
        _Taken(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield TerminalProgress(progress)
