"""The decoding loop on a backend that replays a script and records the calls it gets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.backends.interface import Limits, Step
from dragoman.runtime.decoding.batching import pad
from dragoman.runtime.decoding.greedy import Choice, greedy
from dragoman.runtime.format.generation_settings import GenerationSettings

END = 2
START, VOCABULARY = 1, 1000


@dataclass
class FakeBackend:
    """Row i has the source [i + 10] * (i + 1) and chooses the tokens of script[i], then 999.

    Where a token is not allowed, it chooses 500 + i.
    """

    script: Sequence[Sequence[int]]
    calls: list[str] = field(default_factory=list)
    live: list[list[int]] = field(default_factory=list)
    capacity: int = 0
    source: NDArray[np.int64] | None = None
    mask: NDArray[np.bool_] | None = None
    prompt: NDArray[np.int64] | None = None
    open_states: int = 0
    limits: Limits = Limits()  # noqa: RUF009

    def rows_that_fit(self, source: int) -> int | None:
        raise AssertionError("decoding does not ask for this")

    def start(
        self,
        source: NDArray[Any],
        source_mask: NDArray[np.bool_],
        prompt: NDArray[np.int64],
        capacity: int,
    ) -> FakeState:
        self.source, self.mask, self.capacity = source, source_mask, capacity
        self.prompt = prompt
        self.open_states += 1
        return FakeState(self, [int(first) - 10 for first in source[:, 0]])

    def encode(self, source: Any, source_mask: Any) -> dict[str, NDArray[Any]]:
        raise AssertionError("decoding does not ask for this")

    def score(self, source: Any, source_mask: Any, target: Any) -> NDArray[Any]:
        raise AssertionError("decoding does not ask for this")

    def close(self) -> None:
        raise AssertionError("decoding does not ask for this")


@dataclass
class FakeState:
    backend: FakeBackend
    rows: list[int]
    position: int = 0

    def step(self) -> Step:
        return self._take("step", lambda token, row: token)

    def step_choosing(self, choose: Callable[[NDArray[np.float32]], Step]) -> Step:
        """Logits are 2 for the script's token, 1 for 500 + row, 0 for the others."""

        def chosen(token: int, row: int) -> int:
            logits = np.zeros((len(self.rows), VOCABULARY), np.float32)
            index = self.rows.index(row)
            logits[index, 500 + row], logits[index, token] = 1, 2
            return int(choose(logits).tokens[index])

        return self._take("step choosing", chosen)

    def _take(self, name: str, choose: Any) -> Step:
        backend = self.backend
        assert self.position < backend.capacity, "a step beyond the capacity"
        backend.calls.append(name)
        backend.live.append(list(self.rows))
        tokens = []
        for row in self.rows:
            script = backend.script[row]
            tokens.append(script[self.position] if self.position < len(script) else 999)
        chosen = [choose(token, row) for token, row in zip(tokens, self.rows, strict=True)]
        scores = [probability(row, self.position) for row in self.rows]
        self.position += 1
        return Step(np.array(chosen, np.int64), np.array(scores, np.float32))

    def keep(self, rows: NDArray[np.intp]) -> None:
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()
        self.backend.calls.append("keep")
        self.rows = [self.rows[row] for row in rows]

    def close(self) -> None:
        self.backend.open_states -= 1


def probability(row: int, position: int) -> float:
    return -(row + position / 64)


def decode(
    backend: FakeBackend, limits: Sequence[int], min_new_tokens: int = 0
) -> list[list[Choice]]:
    """The choices of each row."""
    found: list[list[Choice]] = [[] for _ in limits]
    for choice in choices_of(backend, limits, GenerationSettings(min_new_tokens=min_new_tokens)):
        found[choice.row].append(choice)
    return found


def choices_of(
    backend: FakeBackend,
    limits: Sequence[int],
    settings: GenerationSettings = GenerationSettings(),  # noqa: B008
) -> Iterator[Choice]:
    batch = pad([[row + 10] * (row + 1) for row in range(len(limits))], 0)
    prompt = np.full((len(limits), 1), START)
    return greedy(backend, *batch, prompt, limits, settings, [END])


def tokens(found: list[list[Choice]]) -> list[list[int]]:
    return [[choice.token for choice in row] for row in found]


def test_rows_stop_at_the_end_token_or_their_limit() -> None:
    backend = FakeBackend([[5, 6, END], [7, 8, 9, 10, 11], [END], [4, 4, 4]])
    found = decode(backend, [4, 4, 4, 2])
    assert tokens(found) == [[5, 6, END], [7, 8, 9, 10], [END], [4, 4]]
    for row in found:
        assert [choice.last for choice in row] == [False] * (len(row) - 1) + [True]


def test_a_state_is_closed_at_the_end_and_when_abandoned() -> None:
    backend = FakeBackend([[5, 6, END], [7, END]])
    decode(backend, [4, 4])
    assert backend.open_states == 0
    abandoned = choices_of(backend, [4, 4])
    next(abandoned)
    assert backend.open_states == 1
    abandoned.close()  # type: ignore[attr-defined]
    assert backend.open_states == 0


def test_a_choice_has_its_own_log_probability() -> None:
    found = decode(FakeBackend([[END], [5, 6, 7], [5, END], [5, 6, 7]]), [3] * 4)
    for index, row in enumerate(found):
        assert [c.log_probability for c in row] == [
            probability(index, position) for position in range(len(row))
        ]


def test_choices_come_step_by_step_rows_in_order() -> None:
    backend = FakeBackend([[5, END], [END], [6, 7, END]])
    choices = list(choices_of(backend, [3, 3, 3]))
    assert [(choice.row, choice.token) for choice in choices] == [
        (0, 5),
        (1, END),
        (2, 6),
        (0, END),
        (2, 7),
        (2, END),
    ]


def test_a_choice_is_yielded_before_the_next_step_begins() -> None:
    backend = FakeBackend([[5, 6, END]])
    choices = choices_of(backend, [9])
    for calls in (1, 2, 3):
        next(choices)
        assert len(backend.calls) == calls
    assert list(choices) == []
    assert backend.calls == ["step"] * 3


def test_the_backend_gets_padded_sources_and_room_for_the_longest_limit() -> None:
    backend = FakeBackend([[END]] * 3)
    decode(backend, [1, 7, 4])
    assert backend.capacity == 7
    np.testing.assert_array_equal(backend.source, [[10, 0, 0], [11, 11, 0], [12, 12, 12]])
    np.testing.assert_array_equal(backend.mask, [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_no_step_follows_when_all_rows_have_ended(rows: int) -> None:
    backend = FakeBackend([[END, 8]] * rows)
    assert tokens(decode(backend, [5] * rows)) == [[END]] * rows
    assert backend.calls == ["step"]
    backend = FakeBackend([[5, 8]] * rows)
    assert tokens(decode(backend, [1] * rows)) == [[5]] * rows
    assert backend.calls == ["step"]


def test_a_single_row_is_never_moved() -> None:
    backend = FakeBackend([[5, 6, 7, 8]])
    assert tokens(decode(backend, [3])) == [[5, 6, 7]]
    assert backend.calls == ["step"] * 3


def test_rows_leave_once_an_eighth_of_them_is_finished() -> None:
    """16 rows, one ending at each step: two of 16 leave together, one of 8 leaves alone."""
    backend = FakeBackend([[5] * row + [END] for row in range(16)])
    found = decode(backend, [20] * 16)
    assert tokens(found) == [[5] * row + [END] for row in range(16)]
    sizes = [len(rows) for rows in backend.live]
    assert sizes == [16, 16, 14, 14, 12, 12, 10, 10, 8, 7, 6, 5, 4, 3, 2, 1]
    assert backend.calls.count("keep") == len(set(sizes)) - 1


def test_the_end_token_is_not_among_the_first_choices() -> None:
    backend = FakeBackend([[END, END, END], [7, END], [7, 8, 9, 10]])
    found = decode(backend, [4] * 3, min_new_tokens=2)
    assert tokens(found) == [[500, 500, END], [7, 501, 999, 999], [7, 8, 9, 10]]
    steps = [calls for calls in backend.calls if calls != "keep"]
    assert steps == ["step choosing"] * 2 + ["step"] * 2


def test_a_limit_takes_precedence_over_the_minimum() -> None:
    backend = FakeBackend([[END] * 5, [END] * 5])
    assert tokens(decode(backend, [1, 4], min_new_tokens=3)) == [[500], [501, 501, 501, END]]


def test_a_prompt_is_not_part_of_the_output() -> None:
    backend = FakeBackend([[5, END], [6, 7, 8]])
    batch = pad([[10], [11]], 0)
    prompt = np.array([[START, 40, 41], [START, 42, 43]])
    found = list(greedy(backend, *batch, prompt, [3, 2], GenerationSettings(), [END]))
    assert [(c.row, c.token) for c in found] == [(0, 5), (1, 6), (0, END), (1, 7)]
    np.testing.assert_array_equal(backend.prompt, prompt)
    assert backend.capacity == 3 + 3 - 1


def test_a_forced_first_token_is_part_of_prompt_and_output() -> None:
    backend = FakeBackend([[5, END], [6, 7, 8], [6]])
    settings = GenerationSettings(forced_first_token_id=77)
    found = list(choices_of(backend, [4, 3, 1], settings))
    assert [(c.row, c.token) for c in found] == [
        *((row, 77) for row in range(3)),
        (0, 5),
        (1, 6),
        (0, END),
        (1, 7),
    ]
    assert [c.log_probability for c in found[:3]] == [0, 0, 0]
    np.testing.assert_array_equal(backend.prompt, [[START, 77]] * 3)
    assert backend.capacity == 4


def test_a_forced_last_token_ends_rows_that_reach_their_limit() -> None:
    backend = FakeBackend([[5, END], [6, 7, 8], [6]])
    found = decode_with(backend, [4, 3, 1], GenerationSettings(forced_last_token_id=END))
    assert found == [[5, END], [6, 7, END], [END]]


def test_the_first_token_that_is_not_forced_is_not_a_suppressed_one() -> None:
    settings = GenerationSettings(first_suppressed_token_ids=(5, 9))
    assert decode_with(FakeBackend([[5, 5, END]]), [5], settings) == [[500, 5, END]]
    both = GenerationSettings(first_suppressed_token_ids=(5,), forced_first_token_id=5)
    assert decode_with(FakeBackend([[5, 5, END]]), [5], both) == [[5, 500, 5, END]]


def test_no_ngram_occurs_twice_including_the_start_token() -> None:
    settings = GenerationSettings(no_repeat_ngram_size=2)
    backend = FakeBackend([[START, START, 6, START, 6, END]])
    # After start comes start, then not again; start after 6 is new, as is 6 after start.
    assert decode_with(backend, [9], settings) == [[START, 500, 6, START, 6, END]]


def test_tokens_that_occurred_are_penalized() -> None:
    """Of 2 and 1, 2 / 1.5 is still the larger, and 2 / 3 is not."""
    for penalty, expected in ((1.5, [5, 5, END]), (3.0, [5, 500, END])):
        settings = GenerationSettings(repetition_penalty=penalty)
        assert decode_with(FakeBackend([[5, 5, END]]), [3], settings) == [expected]


def decode_with(
    backend: FakeBackend, limits: Sequence[int], settings: GenerationSettings
) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in limits]
    for choice in choices_of(backend, limits, settings):
        found[choice.row].append(choice.token)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_a_batch_gives_the_same_tokens_as_its_rows_alone(seed: int) -> None:
    generator = random.Random(seed)
    rows = generator.randint(1, 40)
    script = [
        [generator.choice([END, *range(3, 3 + generator.randint(1, 30))]) for _ in range(30)]
        for _ in range(rows)
    ]
    limits = [generator.randint(1, 25) for _ in range(rows)]
    minimum = generator.choice([0, 0, 3])
    expected = []
    for row in range(rows):
        output: list[int] = []
        while len(output) < limits[row] and END not in output:
            token = script[row][len(output)]
            output.append(500 + row if token == END and len(output) < minimum else token)
        expected.append(output)
    backend = FakeBackend(script)
    assert tokens(decode(backend, limits, minimum)) == expected
    assert len(backend.live) == max(len(output) for output in expected)
