"""One batch on two backends: each operation is applied to both and must give the same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dragoman.runtime.backends.interface import Backend, DecodingState, StepOutput
from dragoman.runtime.format.model_spec import ModelSpec

States = tuple[DecodingState, DecodingState]


class Twins:
    """A batch on two backends.

    Args:
        found, expected: the backend that is tested, and one that is trusted

    Attributes:
        lengths: the least and the most tokens of the longest source that is started
        left: the steps that each source has room for; 0: it is retired
        before_joining: called when sources are about to join
    """

    def __init__(
        self, found: Backend, expected: Backend, model: ModelSpec, generator: np.random.Generator
    ) -> None:
        self.found, self.expected, self.model, self.generator = found, expected, model, generator
        self.width, self.capacity, self.lengths = 1, 13, (1, model.max_source_positions)
        self.left: list[int] = []
        self.before_joining: Callable[[], None] = lambda: None

    def begin(self, sources: int, prompt: int) -> None:
        """Start the batch, and read its prompt."""
        self.states, self.left = self._start(sources, prompt)
        if prompt > 1:
            self.step()

    def step(self) -> None:
        """Decode a step and feed the graph's selected tokens back."""
        found, expected = (state.step() for state in self.states)
        self._same(found, expected, self._running())
        self._count()

    def choose(self) -> None:
        """Feed some of the best tokens, to rows that continue others of their source."""
        found, expected = (state.advance() for state in self.states)
        rows = self._running()
        best = expected.candidates(3)
        self._same(StepOutput(*found.candidates(3)), StepOutput(*best), rows)
        self._same(found.choice, expected.choice, rows)
        for name in ("logits", "normalizers"):
            one, other = getattr(found, name)[rows], getattr(expected, name)[rows]
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        count = len(best.tokens)
        tokens = best.tokens[np.arange(count), self.generator.integers(0, 3, count)]
        tokens[~rows] = 0
        parents = self._parents()
        for state in self.states:
            state.reorder(parents)
            state.feed(tokens)
        self._count()

    def go_on(self) -> None:
        """Decode steps both ways."""
        self.step()
        self.choose()
        self.step()

    def retire(self, *sources: int) -> None:
        for state in self.states:
            state.retire(np.array(sources))
        for source in sources:
            self.left[source] = 0

    def keep(self) -> None:
        """Drop retired sources."""
        count = sum(left > 0 for left in self.left)
        later = [source for source in range(count, len(self.left)) if self.left[source]]
        kept = [source if self.left[source] else later.pop() for source in range(count)]
        for state in self.states:
            state.keep(np.array(kept))
        self.left = [self.left[source] for source in kept]

    def join(self, sources: int, prompt: int) -> None:
        """Admit other sources, in the places of retired ones and in new places."""
        states, left = self._start(sources, prompt)
        free = [place for place, number in enumerate(self.left) if not number]
        places = [*free, *range(len(self.left), len(self.left) + sources)][:sources]
        try:
            if prompt > 1:
                found, expected = (state.step() for state in states)
                self._same(found, expected, slice(None))
                left = [number - 1 for number in left]
            self.before_joining()
            for state, other in zip(self.states, states, strict=True):
                state.join(other, np.array(places))
        finally:
            for state in states:
                state.close()
        self.left += [0] * (max(places) + 1 - len(self.left))
        for place, number in zip(places, left, strict=True):
            self.left[place] = number

    def anything(self, most: int) -> None:
        """Do one of these at random, with at most this many sources."""
        running = [source for source, number in enumerate(self.left) if number]
        room = most - len(running)
        kinds = ["step"] * 4 + ["choose"] * 3 + ["retire", "keep"] + ["join"] * (room > 0)
        match kinds[self.generator.integers(len(kinds))] if running else "join":
            case "step":
                self.step()
            case "choose":
                self.choose()
            case "retire":
                self.retire(running[self.generator.integers(len(running))])
            case "keep":
                self.keep()
            case "join":
                self.join(*map(int, self.generator.integers(1, [min(room, 3) + 1, 4])))

    def close(self) -> None:
        for state in self.states:
            state.close()

    def _start(self, sources: int, prompt: int) -> tuple[States, list[int]]:
        least, most = self.lengths
        length = int(self.generator.integers(least, most + 1))
        shape = (sources, length)
        tokens = self.generator.integers(0, self.model.source_vocab_size or 0, shape)
        mask = np.arange(length) < self.generator.integers(1, length + 1, (sources, 1))
        mask[0] = True
        prompts = self.generator.integers(0, self.model.target_vocab_size, (sources, prompt))
        found, expected = (
            backend.start(tokens, mask, prompts, self.capacity, self.width)
            for backend in (self.found, self.expected)
        )
        return (found, expected), [self.capacity + 1 - prompt] * sources

    def _running(self) -> NDArray[np.bool_]:
        return np.repeat(np.array(self.left) > 0, self.width)

    def _same(
        self, found: StepOutput, expected: StepOutput, rows: NDArray[np.bool_] | slice
    ) -> None:
        np.testing.assert_array_equal(found.tokens[rows], expected.tokens[rows])
        np.testing.assert_allclose(
            found.log_probabilities[rows], expected.log_probabilities[rows], rtol=1e-4, atol=1e-4
        )

    def _count(self) -> None:
        """Count a step, and retire sources without room for another."""
        ended = [source for source, number in enumerate(self.left) if number == 1]
        self.left = [max(0, number - 1) for number in self.left]
        if ended:
            self.retire(*ended)

    def _parents(self) -> NDArray[np.intp]:
        """Let some rows of each source go on, and the others continue one of them."""
        parents = np.arange(len(self.left) * self.width).reshape(-1, self.width)
        for rows in parents:
            stay = self.generator.choice(rows, self.generator.integers(1, self.width + 1), False)
            leave = np.isin(rows, stay, invert=True)
            rows[leave] = self.generator.choice(stay, int(leave.sum()))
        return parents.ravel()
