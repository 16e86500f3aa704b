"""Requests enter and leave a running batch at any step; what fails does not harm the others."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from dragoman.runtime.backends.errors import BackendError
from dragoman.runtime.decoding.beam import Beam
from dragoman.runtime.decoding.greedy import Greedy
from dragoman.runtime.decoding.logits_processors import NoBadWords
from dragoman.runtime.decoding.loop import Decoding, DecodingLoop, Job
from dragoman.runtime.decoding.request import Request
from dragoman.runtime.decoding.sampling import Sample
from dragoman.runtime.decoding.scheduling import Failed, Queue
from dragoman.runtime.decoding.search import Strategy
from dragoman.runtime.format.generation_settings import GenerationSettings

from .scripted import END, START, ScriptedBackend, random_logits, request, spec

VOCABULARY = 13
STRATEGIES: list[Strategy] = [Greedy(), Sample(7), Sample(8, temperature=0.5), Greedy()]


def job(key: int, limit: int, strategy: Strategy | None = None, **more: Any) -> Job[int]:
    source = [3 + key % 7] * (1 + key % 4)
    return Job(key, request(source, limit, **more), strategy or STRATEGIES[key % 4])


def loop_of(backend: ScriptedBackend, width: int = 1) -> DecodingLoop[int]:
    return DecodingLoop(backend, spec(VOCABULARY), width=width, capacity=20)


def tokens_of(decoding: Decoding[int]) -> list[int]:
    (draft,) = decoding.drafts
    return draft.row.tokens[draft.begin :]


def alone(asked: Job[int], backend: ScriptedBackend) -> list[int]:
    queue: Queue[int] = Queue(backend, spec(VOCABULARY), rows=1, tokens=100)
    queue.add(asked)
    (outcome,) = queue.outcomes()
    assert isinstance(outcome, Decoding)
    return tokens_of(outcome)


@pytest.mark.parametrize("seed", range(12))
def test_whenever_requests_join_and_leave_each_gets_its_own_output(seed: int) -> None:
    """Greedy ones and samples, with prompts of unequal lengths and given tokens, in one batch."""
    generator = np.random.default_rng(seed)
    backend = ScriptedBackend(random_logits(VOCABULARY, seed=seed, end=1.0), suppressed=[4])
    jobs = [
        job(
            key,
            int(generator.integers(1, 9)),
            prompt=[START, 5, 6][: 1 + key % 3],
            given=[(3, 5), 7][: key % 3],
        )
        for key in range(24)
    ]
    expected = [alone(asked, ScriptedBackend(backend.logits, suppressed=[4])) for asked in jobs]
    loop, waiting = loop_of(backend), list(jobs)
    found: dict[int, list[int]] = {}
    cancelled: set[int] = set()
    while waiting or loop.running:
        ended = []
        if waiting and generator.random() < 0.5:
            count = int(generator.integers(1, 5))
            ended += loop.admit(waiting[:count])
            del waiting[:count]
        if loop.running and generator.random() < 0.1:
            left = loop.running[int(generator.integers(len(loop.running)))]
            loop.cancel(left)
            cancelled.add(left.job.key)
        if generator.random() < 0.3:
            loop.compact()
        ended += loop.step()
        found |= {decoding.job.key: tokens_of(decoding) for decoding in ended}
    assert backend.open_states == 0
    assert found == {k: t for k, t in enumerate(expected) if k not in cancelled}
    assert len(found) > 15


def test_the_most_probable_of_several_given_tokens_is_given() -> None:
    logits = random_logits(VOCABULARY, end=-9)
    loop = loop_of(ScriptedBackend(logits))
    loop.admit([job(0, 2, Greedy(), given=[(6, 3, 9), 8])])
    (decoding,) = loop.running
    while not decoding.search.finished:
        loop.step()
    scores = logits((3,), (START,))
    language = max((3, 6, 9), key=lambda token: scores[token])
    assert decoding.found == [language]
    assert decoding.drafts[0].row.tokens[:3] == [START, language, 8]
    assert decoding.drafts[0].count == 2


def test_a_request_that_is_over_at_once_is_not_started() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    settings = GenerationSettings(forced_first_token_id=END)
    for strategy in (Greedy(), Sample(1), Beam(3)):
        loop = loop_of(backend, strategy.width)
        (decoding,) = loop.admit([job(0, 5, strategy, settings=settings)])
        assert decoding.drafts[0].end_token == END
        assert not loop.running
    assert backend.calls == []


def outcomes_of(
    backend: ScriptedBackend, jobs: list[Job[int]], rows: int
) -> dict[int, list[int] | str]:
    queue: Queue[int] = Queue(backend, spec(VOCABULARY), rows=rows, tokens=10**6)
    for asked in jobs:
        queue.add(asked)
    found: dict[int, list[int] | str] = {}
    for outcome in queue.outcomes():
        assert outcome.job.key not in found
        if isinstance(outcome, Failed):
            found[outcome.job.key] = outcome.reason
        else:
            found[outcome.job.key] = tokens_of(outcome)
    assert backend.open_states == 0
    return found


@pytest.mark.parametrize("most", [1, 2, 5, 7])
@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_that_does_not_fit_is_decoded_in_parts(most: int, width: int) -> None:
    strategy: Strategy = Greedy() if width == 1 else Beam(width)
    jobs = [job(key, 3 + key % 5, strategy) for key in range(20)]
    logits = random_logits(VOCABULARY, end=1.0)
    expected = outcomes_of(ScriptedBackend(logits), jobs, rows=64)
    found = outcomes_of(ScriptedBackend(logits, most_rows=most * width), jobs, rows=16 * width)
    assert found == expected


@pytest.mark.parametrize("most", [2, 3, 5])
def test_prompts_of_other_lengths_that_do_not_fit_are_decoded_once(most: int) -> None:
    logits = random_logits(VOCABULARY, end=1.0)
    prompts = [(1,), (1, 3), (1, 3, 4)]
    jobs = [Job(key, request([3 + key], 5, prompt=prompts[key % 3]), Greedy()) for key in range(11)]
    expected = {job.key: alone(job, ScriptedBackend(logits)) for job in jobs}
    assert outcomes_of(ScriptedBackend(logits, most_rows=most), jobs, rows=8) == expected


def test_a_prefix_in_place_of_a_forced_first_token_does_not_decode_others_twice() -> None:
    """Requests that begin with other numbers of tokens, of which one fits and one does not."""
    logits = random_logits(VOCABULARY, end=1.0)
    forcing = GenerationSettings(forced_first_token_id=4)
    requests = [request([3 + key], 5, settings=forcing if key % 2 else None) for key in range(6)]
    jobs = [Job(key, each, Greedy()) for key, each in enumerate(requests)]
    expected = {job.key: alone(job, ScriptedBackend(logits)) for job in jobs}
    assert outcomes_of(ScriptedBackend(logits, most_rows=1), jobs, rows=8) == expected


def test_a_failure_is_forgotten_before_the_next_attempt() -> None:
    """An exception holds what failed, such as memory on a GPU."""
    failures: list[weakref.ref[Exception]] = []

    class NoMemoryError(BackendError):
        def __init__(self) -> None:
            super().__init__("no memory")
            failures.append(weakref.ref(self))

    def fail_at(rows: int) -> None:
        assert all(failure() is None for failure in failures)
        if rows > 1:
            raise NoMemoryError

    logits = random_logits(VOCABULARY)
    jobs = [job(key, 4) for key in range(7)]
    found = outcomes_of(ScriptedBackend(logits, fail_at=fail_at), jobs, rows=64)
    assert len(failures) > 3
    assert found == outcomes_of(ScriptedBackend(logits), jobs, rows=64)


def test_the_last_request_of_a_batch_that_fails_is_tried_alone() -> None:
    """A batch may need more memory than its present size says."""
    logits = random_logits(VOCABULARY, end=-9)
    backend = ScriptedBackend(logits)

    def fail_at(rows: int) -> None:
        if rows == 1 and "start 1" not in backend.calls:
            raise BackendError("no memory")

    backend.fail_at = fail_at
    jobs = [job(0, 2), job(1, 9)]
    found = outcomes_of(backend, jobs, rows=64)
    assert found == outcomes_of(ScriptedBackend(logits), jobs, rows=64)


def test_a_request_that_does_not_fit_even_alone_is_rejected() -> None:
    strategies: list[Strategy] = [Greedy(), Beam(9), Greedy()]
    jobs = [job(key, 4, strategy) for key, strategy in enumerate(strategies)]
    found = outcomes_of(ScriptedBackend(random_logits(VOCABULARY), most_rows=4), jobs, rows=64)
    assert found[1] == "no memory for 9 rows"
    assert isinstance(found[0], list)
    assert isinstance(found[2], list)


def test_a_step_that_fails_is_repeated_in_parts() -> None:
    """Those that had ended before are not decoded again."""
    logits = random_logits(VOCABULARY, end=1.0)
    jobs = [job(key, 8) for key in range(10)]
    expected = outcomes_of(ScriptedBackend(logits), jobs, rows=64)
    steps = 0

    def fail_at(rows: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 4 or (steps > 4 and rows > 3):
            raise BackendError("the device is busy")

    found = outcomes_of(ScriptedBackend(logits, fail_at=fail_at), jobs, rows=64)
    assert found == expected


@pytest.mark.parametrize("strategy", [Greedy(), Sample(4), Beam(3)], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_reject_their_request_alone(
    strategy: Strategy, number: float
) -> None:
    usual = random_logits(VOCABULARY)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> Any:
        values = usual(source, history)
        if source[0] == 5 and len(history) > 1:
            values[4] = number
        return values

    jobs = [job(key, 5, strategy) for key in range(7)]
    found = outcomes_of(ScriptedBackend(logits), jobs, rows=64)
    assert found.pop(2) == "the model's logits are not finite numbers"
    expected = outcomes_of(ScriptedBackend(usual), jobs, rows=64)
    assert found == {key: tokens for key, tokens in expected.items() if key != 2}


@pytest.mark.parametrize("strategy", [Greedy(), Sample(4), Beam(3)], ids=str)
def test_where_everything_is_forbidden_there_is_no_output(strategy: Strategy) -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    nothing = NoBadWords([(token,) for token in range(VOCABULARY)])
    loop = loop_of(backend, strategy.width)
    loop.admit([Job(0, request([3], 5, prohibitions=[nothing]), strategy)])
    (decoding,) = loop.step()
    assert decoding.drafts == []
    assert backend.open_states == 0


def test_requests_with_other_beams_wait_for_a_batch_of_their_own() -> None:
    strategies: list[Strategy] = [Greedy(), Beam(3), Greedy(), Beam(2), Beam(3)]
    jobs = [job(key, 5, strategy) for key, strategy in enumerate(strategies)]
    logits = random_logits(VOCABULARY)
    found = outcomes_of(ScriptedBackend(logits), jobs, rows=64)
    for key, asked in enumerate(jobs):
        assert found[key] == alone(asked, ScriptedBackend(logits))


def test_more_can_be_queued_while_others_are_decoded() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    queue: Queue[int] = Queue(backend, spec(VOCABULARY), rows=2, tokens=100)
    queue.add(job(0, 3))
    keys = []
    for outcome in queue.outcomes():
        keys.append(outcome.job.key)
        if len(keys) < 5:
            queue.add(job(len(keys), 3))
    assert keys == [0, 1, 2, 3, 4]


def test_a_batch_has_no_more_source_positions_than_asked_for() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY, end=-9))
    queue: Queue[int] = Queue(backend, spec(VOCABULARY), rows=64, tokens=12)
    for key, length in enumerate([20, 6, 4, 3, 3, 2, 1, 1]):
        asked: Request = request([3] * length, 5)
        queue.add(Job(key, asked, Greedy()))
    assert len(list(queue.outcomes())) == 8
    assert [call for call in backend.calls if call.startswith("start")] == [
        *("start 1", "start 2", "start 4", "start 1")
    ]
