"""Contenders do the same work in interleaved rounds, each in a separate process.

Generic in the work and in its outcome: texts and speech (`..text`, `..speech`) say what a work item
is, what a contender answers with, and what is computed from the times.
"""

from .children import call_in
from .contender import Contender, ContenderError, Entrant, Perform, unchanged
from .interpreter import HERE, Interpreter
from .process import in_own_process
from .rounds import Failure, Footprint, Results, Turns, take_turns
from .spread import Spread, fastest, paired, spread
from .worker import Turn, Worker, prepare

__all__ = [
    "HERE",
    "Contender",
    "ContenderError",
    "Entrant",
    "Failure",
    "Footprint",
    "Interpreter",
    "Perform",
    "Results",
    "Spread",
    "Turn",
    "Turns",
    "Worker",
    "call_in",
    "fastest",
    "in_own_process",
    "paired",
    "prepare",
    "spread",
    "take_turns",
    "unchanged",
]
