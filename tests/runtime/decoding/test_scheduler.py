"""Jobs join and leave a running batch at any step, and a failure does not affect others."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest

from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.decoding.beam_search import Beam
from dragoman.runtime.decoding.greedy_and_sampling import Greedy, Sample
from dragoman.runtime.decoding.logits_processors import NoBadWords
from dragoman.runtime.decoding.request import Request
from dragoman.runtime.decoding.running_batch import DecodedJob, Job, RunningBatch
from dragoman.runtime.decoding.scheduler import FailedJob, Scheduler
from dragoman.runtime.decoding.search import Strategy
from dragoman.settings.generation_settings import GenerationSettings

from .scripted import END, START, ScriptedBackend, random_logits, request, spec

VOCABULARY = 13
STRATEGIES: list[Strategy] = [Greedy(), Sample(7), Sample(8, temperature=0.5), Greedy()]


def job(key: int, limit: int, strategy: Strategy | None = None, **more: Any) -> Job[int]:
    source = [3 + key % 7] * (1 + key % 4)
    return Job(key, request(source, limit, **more), strategy or STRATEGIES[key % 4])


def loop_of(backend: ScriptedBackend, width: int = 1) -> RunningBatch[int]:
    return RunningBatch(backend, spec(VOCABULARY), width=width, capacity=20)


def tokens_of(decoding: DecodedJob[int]) -> list[int]:
    (sequence,) = decoding.sequences
    return sequence.row.tokens[sequence.begin :]


def decoded_alone(single: Job[int], backend: ScriptedBackend) -> list[int]:
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=1, tokens=100)
    scheduler.add(single)
    (outcome,) = scheduler.run()
    assert isinstance(outcome, DecodedJob)
    return tokens_of(outcome)


@pytest.mark.parametrize("seed", range(12))
def test_jobs_that_join_and_leave_at_any_step_are_batch_invariant(seed: int) -> None:
    """Greedy search and samples share a batch, with prompts and prefixes of several lengths."""
    generator = np.random.default_rng(seed)
    backend = ScriptedBackend(random_logits(VOCABULARY, seed=seed, end=1.0), suppressed=[4])
    jobs = [
        job(
            key,
            int(generator.integers(1, 9)),
            prompt=[START, 5, 6][: 1 + key % 3],
            prefix=[(3, 5), 7][: key % 3],
        )
        for key in range(24)
    ]
    expected = [
        decoded_alone(single, ScriptedBackend(backend.logits, suppressed=[4])) for single in jobs
    ]
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


@pytest.mark.parametrize("retry", [False, True])
def test_no_job_is_lost_where_encoder_outputs_cannot_be_kept(retry: bool) -> None:
    """All four end at the same step; one of them fails then, each time."""
    backend = ScriptedBackend(random_logits(VOCABULARY, end=-9))
    jobs = [job(key, 3, Greedy()) for key in range(4)]
    expected = [decoded_alone(single, backend) for single in jobs]

    def keep(decoded: DecodedJob[int]) -> bool:
        if decoded.job.key == 2:
            raise MemoryError("no room for the encoder's outputs")
        return False

    scheduler: Scheduler[int] = Scheduler(
        backend, spec(VOCABULARY), rows=4, tokens=100, retry=retry
    )
    for one in jobs:
        kept = dataclasses.replace(one.request, keeps_encoded=keep)
        scheduler.add(dataclasses.replace(one, request=kept))
    outcomes = {outcome.job.key: outcome for outcome in scheduler.run()}
    failed = outcomes.pop(2)
    assert isinstance(failed, FailedJob) and "no room" in str(failed.error)
    found = {k: tokens_of(one) for k, one in outcomes.items() if isinstance(one, DecodedJob)}
    assert found == {key: expected[key] for key in (0, 1, 3)}
    assert backend.open_states == 0


def test_jobs_whose_source_is_encoded_come_first() -> None:
    scheduler: Scheduler[int] = Scheduler(
        ScriptedBackend(random_logits(VOCABULARY)), spec(VOCABULARY), rows=4, tokens=100
    )
    for key in range(3):
        request = job(key, 3).request
        if key == 2:
            request = dataclasses.replace(request, source={"cross_key_0": np.zeros((1, 2, 3, 4))})
        scheduler.add(Job(key, request, Greedy()))
    assert [waiting.key for waiting in scheduler.jobs] == [2, 0, 1]


def test_the_most_probable_of_several_prefix_tokens_is_read() -> None:
    logits = random_logits(VOCABULARY, end=-9)
    loop = loop_of(ScriptedBackend(logits))
    loop.admit([job(0, 2, Greedy(), prefix=[(6, 3, 9), 8])])
    (decoding,) = loop.running
    while not decoding.search.finished:
        loop.step()
    scores = logits((3,), (START,))
    language = max((3, 6, 9), key=lambda token: scores[token])
    among = np.exp(scores[[3, 6, 9]].astype(np.float64))
    ((token, probability),) = decoding.selected
    assert token == language
    assert probability == pytest.approx(float(among.max() / among.sum()))
    assert decoding.sequences[0].row.tokens[:3] == [START, language, 8]
    assert decoding.sequences[0].count == 2


def test_a_job_that_is_finished_at_once_is_not_started() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    settings = GenerationSettings(forced_first_token_id=END)
    for strategy in (Greedy(), Sample(1), Beam(3)):
        loop = loop_of(backend, strategy.width)
        (decoding,) = loop.admit([job(0, 5, strategy, settings=settings)])
        assert decoding.sequences[0].end_token == END
        assert not loop.running
    assert backend.calls == []


def outcomes_of(
    backend: ScriptedBackend, jobs: list[Job[int]], rows: int
) -> dict[int, list[int] | str]:
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=rows, tokens=10**6)
    for single in jobs:
        scheduler.add(single)
    found: dict[int, list[int] | str] = {}
    for outcome in scheduler.run():
        assert outcome.job.key not in found
        if isinstance(outcome, FailedJob):
            found[outcome.job.key] = str(outcome.error)
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
    expected = {job.key: decoded_alone(job, ScriptedBackend(logits)) for job in jobs}
    assert outcomes_of(ScriptedBackend(logits, most_rows=most), jobs, rows=8) == expected


def test_a_prefix_in_place_of_a_forced_first_token_does_not_decode_others_twice() -> None:
    """Requests that begin with other numbers of tokens, of which one fits and one does not."""
    logits = random_logits(VOCABULARY, end=1.0)
    forcing = GenerationSettings(forced_first_token_id=4)
    requests = [request([3 + key], 5, settings=forcing if key % 2 else None) for key in range(6)]
    jobs = [Job(key, each, Greedy()) for key, each in enumerate(requests)]
    expected = {job.key: decoded_alone(job, ScriptedBackend(logits)) for job in jobs}
    assert outcomes_of(ScriptedBackend(logits, most_rows=1), jobs, rows=8) == expected


def test_an_exception_is_freed_before_the_next_attempt() -> None:
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
    """Jobs that were finished before are not decoded again."""
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
def test_logits_that_are_not_finite_reject_only_their_job(
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
def test_there_is_no_output_if_every_token_is_forbidden(strategy: Strategy) -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    nothing = NoBadWords([(token,) for token in range(VOCABULARY)])
    loop = loop_of(backend, strategy.width)
    loop.admit([Job(0, request([3], 5, prohibitions=[nothing]), strategy)])
    (decoding,) = loop.step()
    assert decoding.sequences == []
    assert backend.open_states == 0


def test_jobs_of_another_width_wait_for_a_batch_of_their_own() -> None:
    strategies: list[Strategy] = [Greedy(), Beam(3), Greedy(), Beam(2), Beam(3)]
    jobs = [job(key, 5, strategy) for key, strategy in enumerate(strategies)]
    logits = random_logits(VOCABULARY)
    found = outcomes_of(ScriptedBackend(logits), jobs, rows=64)
    for key, single in enumerate(jobs):
        assert found[key] == decoded_alone(single, ScriptedBackend(logits))


def test_more_can_be_queued_while_others_are_decoded() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY))
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=2, tokens=100)
    scheduler.add(job(0, 3))
    keys = []
    for outcome in scheduler.run():
        keys.append(outcome.job.key)
        if len(keys) < 5:
            scheduler.add(job(len(keys), 3))
    assert keys == [0, 1, 2, 3, 4]


def test_a_batch_has_at_most_the_requested_source_positions() -> None:
    backend = ScriptedBackend(random_logits(VOCABULARY, end=-9))
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=64, tokens=12)
    for key, length in enumerate([20, 6, 4, 3, 3, 2, 1, 1]):
        each: Request = request([3] * length, 5)
        scheduler.add(Job(key, each, Greedy()))
    assert len(list(scheduler.run())) == 8
    assert [call for call in backend.calls if call.startswith("start")] == [
        *("start 1", "start 2", "start 4", "start 1")
    ]


def test_a_defect_is_raised_and_closes_all_batches() -> None:
    """Backends raise no such exception, so it is not a reason to reject a job."""
    usual = random_logits(VOCABULARY, end=-9)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> Any:
        if source[0] == 5 and len(history) > 2:
            raise ZeroDivisionError("a defect")
        return usual(source, history)

    backend = ScriptedBackend(logits)
    scheduler: Scheduler[int] = Scheduler(backend, spec(VOCABULARY), rows=64, tokens=100)
    for key in range(5):
        scheduler.add(job(key, 6))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        list(scheduler.run())
    assert backend.open_states == 0
