"""A backend without a model: what follows is a function of a row's source and of its tokens so far.

It checks that its caller keeps to `interface.DecodingState`, and records the calls it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime.backends.interface import DecodingState, Encoded, Limits, StepOutput
from dragoman.runtime.backends.prediction import HostPrediction
from dragoman.runtime.decoding.request import Request, Rules
from dragoman.runtime.decoding.running_batch import DecodedJob, Job
from dragoman.runtime.decoding.scheduler import Scheduler
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.settings.generation_settings import GenerationSettings

START, END = 1, 2

Logits = Callable[[tuple[int, ...], tuple[int, ...]], NDArray[np.float32]]
"""The source, and the decoder's input so far with the start token -> logits [V]."""


@dataclass
class ScriptedBackend:
    """
    Attributes:
        suppressed: tokens that the graph's own choice excludes
        most_rows: starting or joining more fails, as for lack of memory
        fail_at: called before every step with the number of rows; may raise
    """

    logits: Logits
    suppressed: Sequence[int] = ()
    most_rows: int | None = None
    fail_at: Callable[[int], None] = lambda rows: None
    calls: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    open_states: int = 0
    limits: Limits = Limits()  # noqa: RUF009

    @property
    def steps(self) -> None:
        pass

    def rows_that_fit(self, source: int, capacity: int, share: float = 1.0) -> int | None:
        raise AssertionError("decoding does not ask for this")

    def start(
        self,
        source: NDArray[Any] | Encoded,
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
        width: int = 1,
        prompt_lengths: NDArray[np.int64] | None = None,
        allowed: Sequence[NDArray[np.int64]] | None = None,
    ) -> ScriptedState:
        assert not isinstance(source, Mapping)
        self.calls.append(f"start {len(source)}")
        self.check(len(source) * width)
        self.open_states += 1
        sources = [tuple(s[m].tolist()) for s, m in zip(source, source_mask, strict=True)]
        histories = [tuple(row) for row in np.repeat(prompt, width, axis=0).tolist()]
        return ScriptedState(self, sources, histories, capacity, width)

    def check(self, rows: int) -> None:
        if self.most_rows is not None and rows > self.most_rows:
            raise MemoryError(f"no memory for {rows} rows")

    def encode(
        self, source: Any, source_mask: Any, token_type: Any = None
    ) -> dict[str, NDArray[Any]]:
        raise AssertionError("decoding does not ask for this")

    def attention(self, inputs: Any) -> Any:
        raise AssertionError("decoding does not ask for this")

    def check_alignment(self) -> None:
        raise AssertionError("decoding does not ask for this")

    def align(self, encoded: Any, token: Any) -> Any:
        raise AssertionError("decoding does not ask for this")

    def score(
        self, source: Any, source_mask: Any, target: Any, positions: Any = None
    ) -> NDArray[Any]:
        raise AssertionError("decoding does not ask for this")

    def close(self) -> None:
        raise AssertionError("decoding does not ask for this")


class ScriptedState:
    """
    Args:
        histories: the decoder's input of each row; the last token is not decoded yet
    """

    def __init__(
        self,
        backend: ScriptedBackend,
        sources: list[tuple[int, ...]],
        histories: list[tuple[int, ...]],
        capacity: int,
        width: int,
    ) -> None:
        self.backend, self.sources, self.histories = backend, sources, histories
        self.capacity, self.width = capacity, width
        self.retired = [False] * len(sources)
        self.fed = True
        self.started = False
        self.closed = False

    def step(self) -> StepOutput:
        step = self._advance("step").choice
        self._feed(step.tokens)
        return step

    def advance(self) -> HostPrediction:
        return self._advance("advance")

    def _advance(self, name: str) -> HostPrediction:
        assert self.fed, "a step without input"
        assert not self.closed
        self.backend.calls.append(name)
        self.backend.sizes.append(len(self.histories))
        self.backend.fail_at(len(self.histories))
        self.fed, self.started = False, True
        logits = np.stack([self._logits(row) for row in range(len(self.histories))])
        allowed = logits.copy()
        allowed[:, list(self.backend.suppressed)] = -np.inf
        with np.errstate(invalid="ignore"):  # infinite logits give NaN
            normalizer = np.log(np.exp(allowed - allowed.max(1, keepdims=True)).sum(1))
        choice = StepOutput(allowed.argmax(1), -normalizer.astype(np.float32))
        return HostPrediction(logits, choice, self.backend.suppressed)

    def _logits(self, row: int) -> NDArray[np.float32]:
        source = row // self.width
        if self.retired[source]:
            return self.backend.logits(self.sources[source], (START,))
        history = self.histories[row]
        assert len(history) <= self.capacity, "a step beyond the capacity"
        return self.backend.logits(self.sources[source], history)

    def feed(self, tokens: NDArray[np.int64]) -> None:
        self.backend.calls.append("feed")
        self._feed(tokens)

    def _feed(self, tokens: NDArray[np.int64]) -> None:
        assert not self.fed
        assert len(tokens) == len(self.histories)
        self.fed = True
        self.histories = [
            (*history, token)
            for history, token in zip(self.histories, tokens.tolist(), strict=True)
        ]

    def reorder(self, parents: NDArray[np.intp]) -> None:
        assert not self.fed
        self.backend.calls.append("reorder")
        assert (parents // self.width == np.arange(len(parents)) // self.width).all()
        assert (parents[parents] == parents).all()
        self.histories = [self.histories[parent] for parent in parents]

    def retire(self, sources: NDArray[np.intp]) -> None:
        for source in sources.tolist():
            self.retired[source] = True

    def keep(self, sources: NDArray[np.intp]) -> None:
        assert len(sources) > 0
        assert ((sources == np.arange(len(sources))) | (sources >= len(sources))).all()
        self.backend.calls.append("keep")
        rows = self._rows(sources)
        self.histories = [self.histories[row] for row in rows]
        self.sources = [self.sources[source] for source in sources]
        self.retired = [self.retired[source] for source in sources]

    def join(self, other: DecodingState, sources: NDArray[np.intp]) -> None:
        assert isinstance(other, ScriptedState)
        self.backend.calls.append("join")
        count = max(len(self.sources), int(sources.max()) + 1)
        assert len(set(sources.tolist())) == len(sources) == len(other.sources)
        self.backend.check(count * self.width)
        assert (other.capacity, other.width) == (self.capacity, self.width)
        for state in (self, other):
            assert state.fed
            assert state.started or len(state.histories[0]) == 1
        for index, source in enumerate(sources.tolist()):
            if source == len(self.sources):
                self.sources.append(())
                self.retired.append(True)
                self.histories += [()] * self.width
            assert self.retired[source], "the place of a source that is running"
            self.sources[source] = other.sources[index]
            self.retired[source] = other.retired[index]
            for row, to in zip(other._rows([index]), self._rows([source]), strict=True):
                self.histories[to] = other.histories[row]

    def encoded_source(self, source: int) -> Any:
        raise AssertionError("decoding does not ask for this")

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.backend.open_states -= 1

    def _rows(self, sources: Any) -> list[int]:
        return [int(source) * self.width + beam for source in sources for beam in range(self.width)]


def random_logits(vocabulary: int, *, seed: int = 0, end: float = 0.0) -> Logits:
    """Another distribution after every history; `end` is added to the end token's logit."""

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        key = [seed, 1 + len(source), *source, *history]
        values = np.random.default_rng(key).standard_normal(vocabulary).astype(np.float32) * 2
        values[END] += np.float32(end)
        return values

    return logits


def spec(vocabulary: int, *, positions: int = 64) -> ModelSpec:
    return ModelSpec(
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
        decoder_layers=1,
        num_heads=1,
        head_size=8,
        max_source_positions=positions,
        max_target_positions=positions,
        pad_token_id=0,
        start_token_id=START,
        end_token_id=END,
    )


def request(
    source: list[int],
    limit: int,
    *,
    settings: GenerationSettings | None = None,
    ends: Sequence[int] = (END,),
    prompt: Sequence[int] = (START,),
    prefix: Sequence[int | Sequence[int]] = (),
    **more: Any,
) -> Request:
    rules = Rules.of(
        settings or GenerationSettings(),
        limit=limit,
        end_tokens=ends,
        prompt_length=len(prompt) + len(prefix),
        **more,
    )
    return Request(source=source, prompt=prompt, rules=rules, prefix=prefix)


def decoded(
    backend: ScriptedBackend, jobs: Sequence[Job[int]], *, rows: int = 10**6
) -> list[list[TokenSequence]]:
    """The outputs of each job."""
    scheduler: Scheduler[int] = Scheduler(backend, spec(64), rows=rows, tokens=10**6)
    for job in jobs:
        scheduler.add(job)
    found = {outcome.job.key: outcome for outcome in scheduler.run()}
    assert backend.open_states == 0
    sequences = []
    for job in jobs:
        outcome = found[job.key]
        assert isinstance(outcome, DecodedJob)
        sequences.append(outcome.sequences)
    return sequences
