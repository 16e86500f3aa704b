"""Requests enter and leave at any step; each gets the output that it gets alone, or fails alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.backends.errors import BackendError, DeviceLostError
from dragoman.runtime.backends.interface import Limits
from dragoman.runtime.decoding.beam import Beam
from dragoman.runtime.decoding.greedy import Greedy
from dragoman.runtime.decoding.loop import Job
from dragoman.runtime.decoding.sampling import Sample
from dragoman.runtime.decoding.search import Strategy
from dragoman.runtime.decoding.streaming import Choice
from dragoman.runtime.serving.engine.ticket import DeadlineError, DecodingTicket

from ...runtime.decoding.scripted import ScriptedBackend, random_logits
from .scripted_engine import LOST, VOCABULARY, ScriptedEngine, endless, job, tokens

STRATEGIES: list[Strategy] = [Greedy(), Sample(7), Beam(3), Greedy(), Beam(2), Sample(9)]


def backend(seed: int = 1) -> ScriptedBackend:
    return ScriptedBackend(random_logits(VOCABULARY, seed=seed, end=1.0))


def varied(count: int, seed: int = 0) -> list[Job[int]]:
    """Sources of 1 to 9 tokens, limits of 1 to 9, three strategies."""
    generator = np.random.default_rng(seed)
    return [
        job(
            generator.integers(3, VOCABULARY, generator.integers(1, 10)).tolist(),
            int(generator.integers(1, 10)),
            STRATEGIES[n % len(STRATEGIES)],
        )
        for n in range(count)
    ]


def alone(asked: Job[int], seed: int = 1) -> tuple[int, ...]:
    engine = ScriptedEngine(backend(seed))
    ticket = engine.submit(asked)
    engine.run()
    return tokens(ticket)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_all_at_once_each_gets_its_own(rows: int) -> None:
    """Greedy, beams and samples side by side, in batches of any size."""
    jobs = varied(17)
    engine = ScriptedEngine(backend(), rows=rows)
    tickets = [engine.submit(asked) for asked in jobs]
    engine.run()
    assert [tokens(ticket) for ticket in tickets] == [alone(asked) for asked in jobs]
    assert max(engine.watch.rows) <= max(rows, 3)  # the widest beams alone are more than one row


@pytest.mark.parametrize("seed", range(8))
def test_whenever_they_come(seed: int) -> None:
    generator = np.random.default_rng(seed)
    jobs = varied(23, seed)
    arrivals = generator.integers(1, 20, len(jobs)).tolist()
    tickets: dict[int, DecodingTicket] = {}

    def arrive(step: int) -> None:
        for index, at in enumerate(arrivals):
            if at == step:
                tickets[index] = engine.submit(jobs[index])
        if step == max(arrivals):
            engine.line.close()

    engine = ScriptedEngine(backend(seed), rows=6, before_step=arrive)
    engine.submit(endless(20))
    engine.run(close=False)
    assert {i: tokens(t) for i, t in tickets.items()} == dict(
        enumerate(alone(asked, seed) for asked in jobs)
    )


def test_sources_of_like_length_are_encoded_together() -> None:
    lengths = [9, 30, 1, 8, 31, 10]
    engine = ScriptedEngine(backend())
    for length in lengths:
        engine.submit(job([3] * length, 2))
    engine.run()
    assert engine.watch.encodings == [4, 2]  # 1, 8, 9, 10, of which the first is short; 30, 31
    assert engine.backend.calls[:2] == ["start 4", "start 2"]


def test_running_requests_wait_for_few_sources_at_a_time() -> None:
    """No more are encoded between two steps than the backend asks for."""
    scripted = backend()
    scripted.limits = Limits(encoded=20)
    engine = ScriptedEngine(scripted)
    tickets = [engine.submit(job([3] * 8, 5)) for _ in range(5)]
    long = engine.submit(job([4] * 30, 5))  # more than the backend asks for, alone
    engine.run()
    assert engine.watch.encodings == [2, 2, 1, 1]
    for ticket in tickets:
        assert tokens(ticket) == alone(job([3] * 8, 5))
    assert tokens(long) == alone(job([4] * 30, 5))


def test_samples_of_one_input_and_jobs_that_follow() -> None:
    samples = [job([3, 4], 5, Sample(5, index=n), n) for n in range(4)]
    windows = [job([5, n], 4) for n in range(3, 7)]
    engine = ScriptedEngine(backend())
    several = engine.submit(*samples)
    chain = engine.submit(windows[0], following=windows[1:])
    engine.run()
    assert tokens(several) == sum((alone(one) for one in samples), ())
    assert tokens(chain) == sum((alone(one) for one in windows), ())


def test_tokens_are_told_as_they_are_chosen() -> None:
    told: list[tuple[int, int]] = []

    def listen(choices: object) -> None:
        told.extend((engine.steps, choice.token) for choice in choices)  # type: ignore[attr-defined]

    engine = ScriptedEngine(backend())
    engine.submit(endless(9, [4]))
    ticket = engine.submit(endless(7, [5, 6]), listener=listen)
    engine.run()
    assert [token for _, token in told] == list(tokens(ticket))
    assert [step for step, _ in told] == list(range(1, 8))


def test_who_does_not_want_a_result_any_more_leaves_at_the_next_step() -> None:
    def go(step: int) -> None:
        if step == 3:
            gone.future.cancel()

    engine = ScriptedEngine(backend(), before_step=go)
    gone, stays = engine.submit(endless(20)), engine.submit(endless(8, [4, 5]))
    engine.run()
    assert engine.watch.rows == [2, 2, 2, 1, 1, 1, 1, 1]
    assert tokens(stays) == alone(endless(8, [4, 5]))


def test_who_goes_while_waiting_is_never_begun() -> None:
    engine = ScriptedEngine(backend(), rows=1)
    first, gone = engine.submit(endless(5)), engine.submit(endless(5, [9]))
    gone.future.cancel()
    engine.run()
    assert tokens(first)
    assert engine.backend.calls.count("start 1") == 1


def test_a_request_whose_time_is_up_fails_alone() -> None:
    def hurry(step: int) -> None:
        if step == 3:
            late.deadline = 0.0

    engine = ScriptedEngine(backend(), before_step=hurry)
    late, other = engine.submit(endless(20)), engine.submit(endless(8, [4, 5]))
    never = engine.submit(endless(4), deadline=0.0)
    engine.run()
    for ticket in (late, never):
        with pytest.raises(DeadlineError, match="the request was not done within"):
            ticket.future.result(timeout=0)
    assert tokens(other) == alone(endless(8, [4, 5]))
    assert engine.watch.rows[3:] == [1] * 5


def test_a_request_that_makes_the_model_fail_fails_alone() -> None:
    """Logits of one source are no numbers from its third token on."""
    good = random_logits(VOCABULARY, seed=1, end=-9.0)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        return good(source, history) * (np.nan if source == (7,) and len(history) > 2 else 1)

    sources = [[3, 4], [7], [5], [6, 6]]
    engine = ScriptedEngine(ScriptedBackend(logits))
    tickets = [engine.submit(job(source, 6)) for source in sources]
    engine.run()
    bad = tickets.pop(1)
    with pytest.raises(BackendError, match="the model's logits are not finite numbers"):
        bad.future.result(timeout=0)
    for source, ticket in zip([[3, 4], [5], [6, 6]], tickets, strict=True):
        single = ScriptedEngine(ScriptedBackend(good))
        expected = single.submit(job(source, 6))
        single.run()
        assert tokens(ticket) == tokens(expected)
    assert engine.watch.failures == ["the model's logits are not finite numbers"]


def test_what_was_told_is_not_told_again_after_a_failure() -> None:
    """The batch is decoded again from the beginning."""
    told: list[Choice] = []

    def fail_once(step: int) -> None:
        if step == 4:
            raise BackendError("once")

    engine = ScriptedEngine(backend(), before_step=fail_once)
    ticket = engine.submit(endless(7), listener=told.extend)
    other = engine.submit(endless(6, [8]))
    engine.run()
    assert [choice.token for choice in told] == list(tokens(ticket)) == list(alone(endless(7)))
    assert tokens(other) == alone(endless(6, [8]))


def test_with_too_little_memory_requests_wait_for_each_other() -> None:
    jobs = varied(9)
    scripted = backend()
    scripted.most_rows = 3
    engine = ScriptedEngine(scripted)
    tickets = [engine.submit(asked) for asked in jobs]
    engine.run()
    assert [tokens(ticket) for ticket in tickets] == [alone(asked) for asked in jobs]


def test_a_request_for_which_memory_never_suffices_fails() -> None:
    scripted = backend()
    scripted.most_rows = 2
    engine = ScriptedEngine(scripted)
    wide, narrow = engine.submit(job([3], 5, Beam(4))), engine.submit(job([4], 5))
    engine.run()
    with pytest.raises(BackendError, match="no memory for 4 rows"):
        wide.future.result(timeout=0)
    assert tokens(narrow) == alone(job([4], 5))


def test_a_listener_that_fails_harms_its_own_request_only() -> None:
    def listen(choices: object) -> None:
        raise ValueError("deaf")

    engine = ScriptedEngine(backend())
    deaf = engine.submit(endless(6), listener=listen)
    other = engine.submit(endless(6, [5]))
    engine.run()
    with pytest.raises(ValueError, match="deaf"):
        deaf.future.result(timeout=0)
    assert tokens(other) == alone(endless(6, [5]))


def test_a_defect_fails_those_who_are_there_and_no_others() -> None:
    def break_once(step: int) -> None:
        if step == 2:
            raise ZeroDivisionError("a defect")

    engine = ScriptedEngine(backend(), rows=1, before_step=break_once)
    tickets = [engine.submit(endless(5)), engine.submit(endless(3, [6]))]
    engine.run()
    with pytest.raises(ZeroDivisionError):
        tickets[0].future.result(timeout=0)
    assert tokens(tickets[1]) == alone(endless(3, [6]))
    assert engine.watch.failures == ["ZeroDivisionError: a defect"]


@pytest.mark.parametrize("tokens_before", [0, 2])
def test_a_defect_fails_only_whoever_causes_it(tokens_before: int) -> None:
    """An error that is no backend's, as of numbers that nobody thought of."""
    good = random_logits(VOCABULARY, seed=1, end=-9.0)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        if source == (7,) and len(history) > tokens_before:
            raise OverflowError("too large")
        return good(source, history)

    engine = ScriptedEngine(ScriptedBackend(logits))
    samples = engine.submit(job([3, 4], 6, number=0), job([3, 4], 6, number=1))
    bad, other = engine.submit(job([7], 6)), engine.submit(job([5], 6), following=[job([6], 4)])
    engine.run()
    with pytest.raises(OverflowError, match="too large"):
        bad.future.result(timeout=0)
    single = ScriptedEngine(ScriptedBackend(good))
    expected = single.submit(job([3, 4], 6, number=0), job([3, 4], 6, number=1))
    expected_other = single.submit(job([5], 6), following=[job([6], 4)])
    single.run()
    assert tokens(samples) == tokens(expected)
    assert tokens(other) == tokens(expected_other)


@pytest.mark.parametrize("first", [BackendError("once"), ZeroDivisionError("a defect")])
@pytest.mark.parametrize("second", [LOST, BackendError("again"), ZeroDivisionError("a defect")])
def test_nobody_is_forgotten_if_one_failure_follows_another(
    first: Exception, second: Exception
) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise first
        if step in (4, 5, 6, 7):
            raise second

    engine = ScriptedEngine(backend(), before_step=fail)
    tickets = [engine.submit(endless(9, [source])) for source in (3, 4)]
    engine.run()
    for ticket in tickets:
        assert ticket.future.done()
        assert isinstance(ticket.future.exception(timeout=0), type(second))
    assert (engine.thread.lost is LOST) == (second is LOST)


def test_when_the_device_is_lost_everybody_is_told() -> None:
    def lose(step: int) -> None:
        if step == 2:
            raise LOST

    engine = ScriptedEngine(backend(), rows=1, before_step=lose)
    tickets = [engine.submit(endless(5)) for _ in range(3)]
    engine.run()
    for ticket in tickets:
        with pytest.raises(DeviceLostError):
            ticket.future.result(timeout=0)
    assert engine.thread.lost is LOST
