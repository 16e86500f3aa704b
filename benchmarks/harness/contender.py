"""A contender: how it prepares a model, loads it and does a work item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from dragoman.errors import DragomanError

from .interpreter import HERE, Interpreter

Work = TypeVar("Work")
Outcome = TypeVar("Outcome")

Perform = Callable[[Work], Outcome]
"""Does one work item. A call is what is timed."""


class ContenderError(DragomanError):
    """A contender failed; the message is the reason, without the contender's name."""


@dataclass(frozen=True)
class Contender(Generic[Work, Outcome]):
    """A tool, or a configuration of one.

    Its functions run in other processes, so they must be picklable: functions of a module, or
    `functools.partial` of one.

    Attributes:
        prepare: converts a checkpoint: (checkpoint directory, path that does not exist yet) -> the
            directory to load
        load: (directory, number of threads) -> the loaded model, ready to work
        needs_torch: it computes with PyTorch. For all others `import torch` fails in their process,
            so that they are measured as deployed: some tools load torch merely because it is
            installed
        required: the others are judged by its outcomes, so its failure ends the run
        timed: takes part in the counted rounds; otherwise in the warm-up only, for its outcome
        interpreter: that both functions run in
    """

    name: str
    prepare: Callable[[Path, Path], Path]
    load: Callable[[Path, int], Perform[Work, Outcome]]
    needs_torch: bool = False
    required: bool = False
    timed: bool = True
    interpreter: Interpreter = HERE


class Entrant(NamedTuple):
    """A contender with one number of threads."""

    contender: str
    threads: int

    def __str__(self) -> str:
        return f"{self.contender}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def unchanged(checkpoint: Path, directory: Path) -> Path:
    """The `prepare` of a contender that loads the unchanged checkpoint."""
    return checkpoint
