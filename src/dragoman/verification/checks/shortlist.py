"""Checks the graphs of a shortlist, and measures what the shortlist costs.

For the tokens that a source allows, they must compute the logits of the whole decoder. How many
outputs differ, since the model prefers a token that is not allowed, is stated and no fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime import Model
from dragoman.runtime.backends.interface import DecodingState
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.format.parity import NOT_FINITE, Check, ShortlistParity, TaskParity
from dragoman.runtime.speech.prompts import greedy_options
from dragoman.runtime.texts.shortlist import read_shortlist

from ..inputs.parity_inputs import ParityInputs
from ..oracle import evenly
from .task import compare_task

TOLERANCE, OF_BLOCKS = 1e-4, 0.1
"""The largest difference of a logit, relative to the largest logit: the order of sums differs. The
products of 4-bit blocks also round activations, which the decoder of the shortlist does not."""
SOURCES, STEPS = 6, 12
"""The number of sources that are decoded together with both decoders, and of steps."""


def compare_shortlist(model: Model, inputs: ParityInputs) -> tuple[Check, ShortlistParity]:
    """Compare a bundle with its shortlist and without it."""
    manifest = model.manifest
    assert manifest.shortlist is not None
    shortlist = read_shortlist(model.bundle.path(manifest.shortlist.file), manifest.model)
    sources = [list(map(int, source)) for source in inputs.sources]
    allowed = [shortlist.allowed(source, manifest.end_tokens) for source in sources]
    spread = evenly(len(sources), SOURCES)
    check = _compare_logits(model, [sources[i] for i in spread], [allowed[i] for i in spread])
    options = greedy_options(manifest).replace(target_language=inputs.target_language)
    with_it, without = (
        [
            list(result.tokens)
            for result in model.generate(sources, options.replace(shortlist=is_used))
        ]
        for is_used in (True, False)
    )
    tasks: tuple[TaskParity, ...] = ()
    if inputs.task is not None:
        decode = inputs.decode or (lambda output: model.detokenize(output) or "")
        tasks = tuple(compare_task(model, inputs.task, decode, without, with_it))
    return check, ShortlistParity(
        sequences=len(sources),
        identical=sum(a == b for a, b in zip(with_it, without, strict=True)),
        allowed=round(float(np.mean(list(map(len, allowed)))), 1),
        tasks=tasks,
    )


def _compare_logits(
    model: Model, sources: Sequence[list[int]], allowed: Sequence[NDArray[np.int64]]
) -> Check:
    manifest, backend = model.manifest, model.backend
    source, mask = as_batch(sources, manifest.model, backend.limits.source_multiple)
    start = [manifest.model.start_token_id, *manifest.generation.prompt]
    prompt = np.array([start] * len(sources))
    steps = min(STEPS, manifest.model.max_target_positions - len(start))
    capacity = len(start) + steps
    whole = backend.start(source, mask, prompt, capacity)
    listed = backend.start(source, mask, prompt, capacity, allowed=allowed)
    tolerance = OF_BLOCKS if manifest.precision == "int4" else TOLERANCE
    compared, differing, worst, problem = 0, 0, 0.0, ""
    with contextlib.closing(whole), contextlib.closing(listed):
        for step in range(steps):
            difference, tokens = _difference(whole, listed, allowed)
            compared += difference.size
            beyond = difference > tolerance
            differing += int(beyond.sum())
            worst = max(worst, float(difference.max(initial=0)) / tolerance)
            if beyond.any() and not problem:
                problem = (
                    f"the logits of a token of the shortlist differ by {difference.max():.3g} of "
                    f"the largest at step {step + 1}"
                )
            whole.feed(tokens)
            listed.feed(tokens)
    return Check("shortlist", compared, "logits", differing, not differing, worst, problem)


def _difference(
    whole: DecodingState, listed: DecodingState, allowed: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Compute one step of both decoders.

    Returns:
        each allowed logit's difference, relative to the largest; and the selected tokens
    """
    expected, found = whole.advance(), listed.advance()
    apart = []
    for row, tokens in enumerate(allowed):
        right = expected.logits[row, tokens].astype(np.float64)
        apart.append(np.abs(found.logits[row, tokens] - right) / max(1.0, np.abs(right).max()))
        others = np.delete(found.logits[row], tokens)
        if (others > -np.inf).any() or found.choice.tokens[row] not in tokens:
            apart[-1][:] = NOT_FINITE
    difference = np.concatenate(apart)
    difference[~np.isfinite(difference)] = NOT_FINITE
    return difference, found.choice.tokens
