"""The progress of long-running work, on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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


class TerminalProgress:
    """A line on standard error that shows the present stage, and a bar once its length is known.
    See `dragoman.progress.Progress`.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def stage(self, description: str) -> None:
        self._progress.reset(self._task, total=None, description=f"{description} ...")

    def advance(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


class _IfCounted(ProgressColumn):
    """Shows a column only while a stage has a known length."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> Text:
        shown = self._column(task) if task.total is not None else ""
        return shown  # type: ignore[return-value]  # any renderable will do


@contextlib.contextmanager
def shown_progress() -> Iterator[TerminalProgress]:
    """Show progress within the block, if standard error is a terminal."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        SpinnerColumn(),
        TextColumn("[progress.description]{task.description}"),
        *map(_IfCounted, columns),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield TerminalProgress(progress)
