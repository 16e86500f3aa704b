"""Options of `dragoman run` that cannot be had: one line, in the command line's own words, before
the first line of input is waited for."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from .test_user_mistakes import error_of

Dragoman = Callable[..., CompletedProcess[str]]

MISTAKES = {
    "--beams 0": "Invalid value for '--beams': 0 is not in the range x>=1.",
    "--beams many": "Invalid value for '--beams': 'many' is not a valid integer range.",
    "--beams 43": "--beams: expected at most 42, the vocabulary, found 43",
    "--n-best 0": "Invalid value for '--n-best': 0 is not in the range x>=1.",
    "--n-best 3": "--n-best: expected at most --beams 1, found 3: greedy search finds one",
    "--beams 1 --n-best 2": (
        "--n-best: expected at most --beams 1, found 2: greedy search finds one"
    ),
    "--length-penalty 0.6": "--length-penalty: for beam search: set --beams, or leave it out",
    "--length-penalty inf": "--length-penalty: expected a number from -50 to 50, found inf",
    "--early-stopping maybe": (
        "Invalid value for '--early-stopping': 'maybe' is not one of 'true', 'false', 'never'."
    ),
    "--early-stopping never": "--early-stopping: for beam search: set --beams, or leave it out",
    "--sample --beams 4": "--beams: expected 1, or no --sample, found 4 with --sample",
    "--temperature 0": "Invalid value for '--temperature': 0.0 is not in the range x>0.",
    "--temperature -1": "Invalid value for '--temperature': -1.0 is not in the range x>0.",
    "--sample --temperature nan": "--temperature: expected a number in (0, inf), found nan",
    "--temperature 0.8": "--temperature: for sampling: set --sample, or leave it out",
    "--top-k 5 --seed 3": "--top-k, --seed: for sampling: set --sample, or leave it out",
    "--top-k -1": "Invalid value for '--top-k': -1 is not in the range x>=0.",
    "--top-p 0": "Invalid value for '--top-p': 0.0 is not in the range 0<x<=1.",
    "--top-p 1.5": "Invalid value for '--top-p': 1.5 is not in the range 0<x<=1.",
    "--min-p -0.1": "Invalid value for '--min-p': -0.1 is not in the range 0<=x<=1.",
    "--sample --seed -1": (
        "--seed: expected an integer of at least 0 and of at most 64 bits, found -1"
    ),
    "--prefix 5": "--prefix: unknown to this model: '5', found '5'",
    "--must-contain N": "--must-contain: expected --beams of more than 1: it needs beam search",
    "--must-contain N --must-not-contain N": "--must-contain: 'N' is in --must-not-contain, too",
    "--prefix N_N --must-not-contain N": "--prefix: 'N N' has a phrase of --must-not-contain",
    "--beams 2 --must-contain N_IY --must-not-contain IY": (
        "--must-contain: 'N IY' has a phrase of --must-not-contain"
    ),
    "--beams 2 --must-contain n": "--must-contain: unknown to this model: 'n', found 'n'",
    "--min-new-tokens 5 --max-new-tokens 3": (
        "--min-new-tokens: expected at most --max-new-tokens 3, found 5"
    ),
    "--alternatives 2": "--alternatives: expected with --json, which has a place for them",
    "--alternatives 43 --json": "--alternatives: expected at most 42, the vocabulary, found 43",
    "--stream --json": "--stream and --json exclude each other",
    "--stream --scores": "--stream and --scores exclude each other",
    "--stream --sample --n-best 2": "--stream and --n-best exclude each other",
    "--stream --timestamps": "--stream and --timestamps exclude each other",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_options_that_cannot_be_had(run: Dragoman, options: str) -> None:
    words = [word.replace("_", " ") for word in options.split()]
    assert error_of(run(*words)) == f"Error: {MISTAKES[options]}"
