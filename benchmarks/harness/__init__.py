"""Contenders do the same work in interleaved rounds, each in a separate process.

Generic in the work and in its outcome: texts and speech (`..text`, `..speech`) say what a work item
is, what a contender answers with, and what is computed from the times.
"""

from .contender import Contender, Perform, unchanged
from .process import in_own_process
from .rounds import Failure, Footprint, Results, Turns, take_turns
from .spread import Spread, fastest, spread
from .worker import ContenderError, Turn, Worker, prepare

__all__ = [
    "Contender",
    "ContenderError",
    "Failure",
    "Footprint",
    "Perform",
    "Results",
    "Spread",
    "Turn",
    "Turns",
    "Worker",
    "fastest",
    "in_own_process",
    "prepare",
    "spread",
    "take_turns",
    "unchanged",
]
