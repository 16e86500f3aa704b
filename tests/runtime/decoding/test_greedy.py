"""Greedy search in the loop, on a backend that replays a script."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.decoding.greedy_and_sampling import Greedy
from dragoman.runtime.decoding.running_batch import DecodedJob, Job, stream_tokens
from dragoman.runtime.decoding.scheduler import FailedJob, Scheduler
from dragoman.runtime.decoding.search import TokenSequence
from dragoman.settings.generation_settings import GenerationSettings

from .scripted import END, START, ScriptedBackend, request, spec

VOCABULARY = 1000


@dataclass
class Script:
    """Row i has the source [i + 10] * (i + 1), and the tokens of rows[i] follow, then 999. Where a
    token is not allowed, 500 + i follows: logits are 2 for the script's token and 1 for this."""

    rows: Sequence[Sequence[int]]
    prompt_length: int = 1

    def __call__(self, source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        row, position = source[0] - 10, len(history) - self.prompt_length
        script = self.rows[row]
        logits = np.zeros(VOCABULARY, np.float32)
        logits[500 + row] = 1
        logits[script[position] if position < len(script) else 999] = 2
        return logits


def backend_of(script: Sequence[Sequence[int]], prompt_length: int = 1) -> ScriptedBackend:
    return ScriptedBackend(Script(script, prompt_length))


def decode(
    backend: ScriptedBackend,
    limits: Sequence[int],
    settings: GenerationSettings | None = None,
    *,
    rows: int = 64,
    prompt: Sequence[int] = (START,),
) -> list[TokenSequence]:
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=rows, tokens=10**6)
    for row, limit in enumerate(limits):
        each = request([row + 10] * (row + 1), limit, settings=settings, prompt=prompt)
        scheduler.add(Job(row, each, Greedy()))
    outcomes: dict[int, DecodedJob[int] | FailedJob[int]] = {o.job.key: o for o in scheduler.run()}
    assert backend.open_states == 0
    sequences = []
    for row in range(len(limits)):
        outcome = outcomes[row]
        assert isinstance(outcome, DecodedJob)
        (sequence,) = outcome.sequences
        sequences.append(sequence)
    return sequences


def tokens(sequences: list[TokenSequence]) -> list[list[int]]:
    """The tokens of outputs, with the end token."""
    return [sequence.row.tokens[sequence.begin :] for sequence in sequences]


def test_rows_stop_at_the_end_token_or_their_limit() -> None:
    backend = backend_of([[5, 6, END], [7, 8, 9, 10, 11], [END], [4, 4, 4]])
    found = decode(backend, [4, 4, 4, 2])
    assert tokens(found) == [[5, 6, END], [7, 8, 9, 10], [END], [4, 4]]
    assert [sequence.end_token for sequence in found] == [END, None, END, None]


def test_a_state_is_closed_at_the_end_and_when_abandoned() -> None:
    backend = backend_of([[5, 6, END]])
    job = Job(0, request([10], 4), Greedy())
    assert [c.token for c in stream_tokens(backend, spec(VOCABULARY), job)] == [5, 6, END]
    assert backend.open_states == 0
    abandoned: Any = stream_tokens(backend, spec(VOCABULARY), job)
    next(abandoned)
    assert backend.open_states == 1
    abandoned.close()
    assert backend.open_states == 0


def test_a_choice_has_its_own_log_probability() -> None:
    found = decode(backend_of([[END], [5, 6, 7], [5, END]]), [3] * 3)
    expected = 2 - np.log(np.exp(2) + np.exp(1) + VOCABULARY - 2)
    for sequence in found:
        np.testing.assert_allclose(sequence.log_probabilities, expected, rtol=1e-6)
        assert sequence.score == pytest.approx(expected * sequence.count)


def test_a_choice_is_yielded_before_the_next_step_begins() -> None:
    backend = backend_of([[5, 6, END]])
    found = stream_tokens(backend, spec(VOCABULARY), Job(0, request([10], 9), Greedy()))
    for steps in (1, 2, 3):
        next(found)
        assert backend.calls == ["start 1"] + ["step"] * steps
    assert list(found) == []
    assert backend.calls == ["start 1"] + ["step"] * 3


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_no_step_follows_when_all_rows_have_ended(rows: int) -> None:
    backend = backend_of([[END, 8]] * rows)
    assert tokens(decode(backend, [5] * rows)) == [[END]] * rows
    assert backend.calls == [f"start {rows}", "step"]
    backend = backend_of([[5, 8]] * rows)
    assert tokens(decode(backend, [1] * rows)) == [[5]] * rows
    assert backend.calls == [f"start {rows}", "step"]


def test_rows_leave_once_an_eighth_of_them_is_finished() -> None:
    """16 rows, one ending at each step: two of 16 leave together, of 8 a single one."""
    backend = backend_of([[5] * row + [END] for row in range(16)])
    found = decode(backend, [20] * 16)
    assert tokens(found) == [[5] * row + [END] for row in range(16)]
    assert backend.sizes == [16, 16, 14, 14, 12, 12, 10, 10, 8, 7, 6, 5, 4, 3, 2, 1]
    assert backend.calls.count("keep") == len(set(backend.sizes)) - 1


def test_the_end_token_is_not_among_the_first_choices() -> None:
    backend = backend_of([[END, END, END], [7, END], [7, 8, 9, 10]])
    found = decode(backend, [4] * 3, GenerationSettings(min_new_tokens=2))
    assert tokens(found) == [[500, 500, END], [7, 501, 999, 999], [7, 8, 9, 10]]
    steps = [call for call in backend.calls if call in ("step", "advance")]
    assert steps == ["advance"] * 2 + ["step"] * 2


def test_a_limit_takes_precedence_over_the_minimum() -> None:
    backend = backend_of([[END] * 5, [END] * 5])
    settings = GenerationSettings(min_new_tokens=3)
    assert tokens(decode(backend, [1, 4], settings)) == [[500], [501, 501, 501, END]]


def test_a_prompt_is_not_part_of_the_output() -> None:
    backend = backend_of([[5, END], [6, 7, 8]], prompt_length=3)
    found = decode(backend, [3, 2], prompt=[START, 40, 41])
    assert tokens(found) == [[5, END], [6, 7]]
    assert backend.calls[0] == "start 2"


def test_a_forced_first_token_is_part_of_prompt_and_output() -> None:
    backend = backend_of([[5, END], [6, 7, 8], [6]], prompt_length=2)
    found = decode(backend, [4, 3, 1], GenerationSettings(forced_first_token_id=77))
    assert tokens(found) == [[77, 5, END], [77, 6, 7], [77]]
    assert [sequence.log_probabilities[0] for sequence in found] == [0, 0, 0]
    assert backend.calls[0] == "start 2"  # the third has nothing left to decode


def test_a_forced_last_token_ends_rows_that_reach_their_limit() -> None:
    backend = backend_of([[5, END], [6, 7, 8], [6]])
    found = decode(backend, [4, 3, 1], GenerationSettings(forced_last_token_id=END))
    assert tokens(found) == [[5, END], [6, 7, END], [END]]
    assert found[1].log_probabilities[-1] == 0


def test_the_first_token_that_is_not_forced_is_not_a_suppressed_one() -> None:
    settings = GenerationSettings(first_suppressed_token_ids=(5, 9))
    assert tokens(decode(backend_of([[5, 5, END]]), [5], settings)) == [[500, 5, END]]
    both = GenerationSettings(first_suppressed_token_ids=(5,), forced_first_token_id=5)
    assert tokens(decode(backend_of([[5, 5, END]], 2), [5], both)) == [[5, 500, 5, END]]


def test_no_ngram_occurs_twice_including_the_start_token() -> None:
    settings = GenerationSettings(no_repeat_ngram_size=2)
    backend = backend_of([[START, START, 6, START, 6, END]])
    # After start comes start, then not again; start after 6 is new, as is 6 after start.
    assert tokens(decode(backend, [9], settings)) == [[START, 500, 6, START, 6, END]]


def test_tokens_that_occurred_are_penalized() -> None:
    """Of 2 and 1, 2 / 1.5 is still the larger, and 2 / 3 is not."""
    for penalty, expected in ((1.5, [5, 5, END]), (3.0, [5, 500, END])):
        settings = GenerationSettings(repetition_penalty=penalty)
        assert tokens(decode(backend_of([[5, 5, END]]), [3], settings)) == [expected]


def test_bad_words_of_one_token_and_more_do_not_occur() -> None:
    settings = GenerationSettings(bad_words=((5, 6), (START, 7)))
    assert tokens(decode(backend_of([[7, 5, 6, END]]), [9], settings)) == [[500, 5, 500, END]]


@pytest.mark.parametrize("seed", range(25))
def test_outputs_do_not_depend_on_the_batch(seed: int) -> None:
    """Also where rows join others, at different positions."""
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
    settings = GenerationSettings(min_new_tokens=minimum)
    together = backend_of(script)
    assert tokens(decode(together, limits, settings)) == expected
    assert len(together.sizes) == max(len(output) for output in expected)
    few = generator.randint(1, 8)
    backend = backend_of(script)
    assert tokens(decode(backend, limits, settings, rows=few)) == expected
    assert max(backend.sizes) <= few
