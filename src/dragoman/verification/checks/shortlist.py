"""Checks the graphs of a shortlist, and measures what the shortlist costs.

For the tokens that a source allows, they must compute the logits of the whole decoder, and choose
the best. Every token of the vocabulary is allowed once. How many outputs differ, since the model
prefers a token that is not allowed, is stated and no fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.optimize.running import InMemoryBackend
from dragoman.runtime import Model
from dragoman.runtime.backends.interface import DecodingState, Prediction
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.format.contract import SHORTLIST_GRAPHS
from dragoman.runtime.format.parity import NOT_FINITE, Check, ShortlistParity, TaskParity
from dragoman.runtime.speech.prompts import greedy_options
from dragoman.runtime.texts.shortlist import read_shortlist

from ..inputs.parity_inputs import ParityInputs
from ..oracle import evenly
from ..tolerances import Tally
from .task import compare_task

TOLERANCE, OF_BLOCKS = 1e-4, 0.1
"""The largest difference of a logit, relative to the largest logit: the order of sums differs. The
products of 4-bit blocks also round activations, which the decoder of the shortlist does not: the
logits of both are compared without this rounding, too."""
SCORE_TOLERANCE = 1e-4
"""Nats between the log-probability of a choice and that of the logits."""
SOURCES, STEPS = 6, 12
"""The number of sources that are decoded together with both decoders, and of steps."""
WIDTH = 2
"""Rows of each source: one reads what it chooses, the other one allowed token after the other."""
JOINS, LEAVES = 3, 6
"""The steps before which the last two sources join the others, and the first one leaves."""
LEAST_IDENTICAL, MOST_POINTS = 0.5, 1.0
"""The least share of outputs that stay the same, and the most points of 100 that a metric loses,
without a warning."""
MOST_TOKENS = 2**16
"""Tokens of the vocabulary whose weights are gathered together."""


def compare_shortlist(
    model: Model, inputs: ParityInputs, threads: int | None = None
) -> tuple[Check, ShortlistParity]:
    """Compare a bundle with its shortlist and without it.

    Args:
        model: the bundle as it runs
        inputs: the inputs of parity
        threads: of the processor, for graphs that round no activations; None: all cores

    Returns:
        the check of the graphs, and what the shortlist costs
    """
    manifest = model.manifest
    assert manifest.shortlist is not None
    shortlist = read_shortlist(model.bundle.path(manifest.shortlist.file), manifest.model)
    sources = [list(map(int, source)) for source in inputs.sources]
    allowed = [shortlist.allowed(source, manifest.end_tokens) for source in sources]
    spread = evenly(len(sources), SOURCES)
    some, lists = [sources[i] for i in spread], [allowed[i] for i in spread]
    blocks, tally = manifest.precision == "int4", Tally()
    _compare_decoders(model, some, lists, OF_BLOCKS if blocks else TOLERANCE, tally)
    if blocks:
        with _unrounded(model, threads) as exact:
            _compare_decoders(exact, some, lists, TOLERANCE, tally)
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
    return tally.check("shortlist", "logits"), ShortlistParity(
        sequences=len(sources),
        identical=sum(a == b for a, b in zip(with_it, without, strict=True)),
        allowed=round(float(np.mean(list(map(len, allowed)))), 1),
        tasks=tasks,
    )


def shortlist_warnings(cost: ShortlistParity) -> list[str]:
    """Return a sentence if a shortlist leaves out much of what the model would generate."""
    worse = [
        f"{task.metric} is {task.bundle:.2f} in place of {task.oracle:.2f}"
        for task in cost.tasks
        if task.loss > (MOST_POINTS if max(task.oracle, task.bundle) > 1 else MOST_POINTS / 100)
    ]
    if not worse and cost.identical >= LEAST_IDENTICAL * cost.sequences:
        return []
    found = [f"{cost.identical} of {cost.sequences} outputs are those of the whole vocabulary"]
    return [
        f"the shortlist: {'; '.join(found + worse)}; it may be that of another model, or of too "
        "few texts"
    ]


def _unrounded(model: Model, threads: int | None) -> Model:
    """Open a bundle whose products by blocks of integers do not round activations."""
    bundle = model.bundle
    names = ("encoder", "decoder", *SHORTLIST_GRAPHS)
    graphs: dict[str, ir.Model] = {name: load_graph(bundle.graph_path(name)) for name in names}
    for graph in graphs.values():
        for node in graph.graph:
            if node.op_type == "MatMulNBits":
                node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 1)
    return Model(bundle, InMemoryBackend(bundle, graphs, threads))


def _compare_decoders(
    model: Model,
    sources: Sequence[list[int]],
    allowed: Sequence[NDArray[np.int64]],
    tolerance: float,
    tally: Tally,
) -> None:
    """Compare both decoders on what sources allow, and at their first step on the vocabulary."""
    spec, ends = model.manifest.model, np.array(model.manifest.end_tokens)
    _compare_steps(model, sources, allowed, STEPS, tolerance, tally)
    for first in range(0, spec.target_vocab_size, MOST_TOKENS):
        tokens = np.arange(first, min(first + MOST_TOKENS, spec.target_vocab_size))
        dealt = [np.union1d(tokens[i :: len(sources)], ends) for i in range(len(sources))]
        _compare_steps(model, sources, dealt, 1, tolerance, tally)


def _compare_steps(
    model: Model,
    sources: Sequence[list[int]],
    allowed: Sequence[NDArray[np.int64]],
    most: int,
    tolerance: float,
    tally: Tally,
) -> None:
    """Compare logits and choices at some steps of sources that are decoded together."""
    manifest = model.manifest
    start = [manifest.model.start_token_id, *manifest.generation.prompt]
    steps = min(most, manifest.model.max_target_positions - len(start))
    joins = 2 if steps > JOINS and len(sources) > 2 and len(start) == 1 else 0

    def begin(numbers: Sequence[int], *, listed: bool) -> DecodingState:
        multiple = model.backend.limits.source_multiple
        source, mask = as_batch([sources[i] for i in numbers], manifest.model, multiple)
        lists = [allowed[i] for i in numbers] if listed else None
        prompt = np.array([start] * len(numbers))
        return model.backend.start(source, mask, prompt, len(start) + steps, WIDTH, allowed=lists)

    numbers = list(range(len(sources) - joins))
    states = [begin(numbers, listed=listed) for listed in (False, True)]
    suppressed = manifest.generation.suppressed_token_ids
    try:
        for step in range(steps):
            if joins and step == JOINS:
                joining = [len(numbers), len(numbers) + 1]
                numbers += joining
                for state, listed in zip(states, (False, True), strict=True):
                    state.join(begin(joining, listed=listed), np.array(joining))
            if joins and step == LEAVES:
                numbers = [len(numbers) - 1, *range(1, len(numbers) - 1)]
                for state in states:
                    state.retire(np.array([0]))
                    state.keep(np.array(numbers))
            expected, found = (state.advance() for state in states)
            tokens = found.choice.tokens.copy()
            for row in range(len(tokens)):
                own = allowed[numbers[row // WIDTH]]
                apart = _difference(expected, found, row, own)
                beyond, excess = apart > tolerance, float(apart.max(initial=0)) / tolerance
                if beyond.any():
                    wrong = (
                        f"the logits of a token of the shortlist differ by {apart.max():.3g} of "
                        "the largest"
                    )
                else:
                    wrong = _wrong_choice(found, row, own, suppressed)
                differing, problem = int(beyond.sum()), wrong and f"{wrong} at step {step + 1}"
                tally.add(len(own), differing or bool(wrong), excess, problem)
                if row % WIDTH or tokens[row] not in own:
                    tokens[row] = own[step % len(own)]
            for state in states:
                state.feed(tokens)
    finally:
        for state in states:
            state.close()


def _difference(
    expected: Prediction, found: Prediction, row: int, tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compare the logits of a row's allowed tokens, relative to the largest."""
    right = expected.logits[row, tokens].astype(np.float64)
    apart: NDArray[np.float64] = np.abs(found.logits[row, tokens] - right)
    apart /= max(1.0, float(np.abs(right).max()))
    if (np.delete(found.logits[row], tokens) > -np.inf).any():
        apart[:] = NOT_FINITE
    apart[~np.isfinite(apart)] = NOT_FINITE
    return apart


def _wrong_choice(
    found: Prediction, row: int, tokens: NDArray[np.int64], suppressed: Sequence[int]
) -> str:
    """Say how a row's choice differs from its logits; empty: it does not, or they are equal."""
    logits = found.logits[row].astype(np.float64)
    logits[list(suppressed)] = -np.inf
    token, best = int(found.choice.tokens[row]), int(logits.argmax())
    if token not in tokens or logits[token] < logits[best]:
        return f"the shortlist's decoder chooses token {token}, the best of its logits is {best}"
    exact = float(-np.log(np.exp(logits - logits[best]).sum()))
    given = float(found.choice.log_probabilities[row])
    if abs(given - exact) <= SCORE_TOLERANCE:
        return ""
    return (
        f"the log-probability of a choice of the shortlist's decoder is {given:.4f}, expected "
        f"{exact:.4f} by its logits"
    )
