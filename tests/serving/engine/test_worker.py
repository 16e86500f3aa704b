"""Requests join and leave at any step, and each is decoded, or fails, as in a batch of one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.arguments import DeadlineError
from dragoman.runtime.backends.interface import BackendError, DeviceLostError, Limits
from dragoman.runtime.decoding.beam_search import Beam
from dragoman.runtime.decoding.greedy_and_sampling import Greedy, Sample
from dragoman.runtime.decoding.running_batch import Job, SelectedToken
from dragoman.runtime.decoding.search import Strategy
from dragoman.runtime.serving.engine.request_handle import DecodingHandle

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


def decoded_alone(single: Job[int], seed: int = 1) -> tuple[int, ...]:
    """The output of a job in a batch of one."""
    engine = ScriptedEngine(backend(seed))
    handle = engine.submit(single)
    engine.run()
    return tokens(handle)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_requests_that_come_together_are_batch_invariant(rows: int) -> None:
    """Greedy search, beams and samples share batches of any size."""
    jobs = varied(17)
    engine = ScriptedEngine(backend(), rows=rows)
    handles = [engine.submit(single) for single in jobs]
    engine.run()
    assert [tokens(handle) for handle in handles] == [decoded_alone(single) for single in jobs]
    assert max(engine.observer.rows) <= max(rows, 3)  # the widest beams alone are more than one row


@pytest.mark.parametrize("seed", range(8))
def test_requests_that_come_at_any_time_are_batch_invariant(seed: int) -> None:
    generator = np.random.default_rng(seed)
    jobs = varied(23, seed)
    arrivals = generator.integers(1, 20, len(jobs)).tolist()
    handles: dict[int, DecodingHandle] = {}

    def arrive(step: int) -> None:
        for index, at in enumerate(arrivals):
            if at == step:
                handles[index] = engine.submit(jobs[index])
        if step == max(arrivals):
            engine.queue.close()

    engine = ScriptedEngine(backend(seed), rows=6, before_step=arrive)
    engine.submit(endless(20))
    engine.run(close=False)
    assert {i: tokens(t) for i, t in handles.items()} == dict(
        enumerate(decoded_alone(single, seed) for single in jobs)
    )


def test_sources_of_similar_lengths_are_encoded_together() -> None:
    lengths = [9, 30, 1, 8, 31, 10]
    engine = ScriptedEngine(backend())
    for length in lengths:
        engine.submit(job([3] * length, 2))
    engine.run()
    assert engine.observer.encodings == [4, 2]  # 1, 8, 9, 10, of which the first is short; 30, 31
    assert engine.backend.calls[:2] == ["start 4", "start 2"]


def test_few_sources_are_encoded_between_two_steps() -> None:
    """The backend limits the tokens that are encoded at once."""
    scripted = backend()
    scripted.limits = Limits(encoded=20)
    engine = ScriptedEngine(scripted)
    handles = [engine.submit(job([3] * 8, 5)) for _ in range(5)]
    long = engine.submit(job([4] * 30, 5))  # more than the limit
    engine.run()
    assert engine.observer.encodings == [2, 2, 1, 1]
    for handle in handles:
        assert tokens(handle) == decoded_alone(job([3] * 8, 5))
    assert tokens(long) == decoded_alone(job([4] * 30, 5))


def test_requests_may_have_several_jobs_at_once_or_in_turn() -> None:
    samples = [job([3, 4], 5, Sample(5, index=n), n) for n in range(4)]
    windows = [job([5, n], 4) for n in range(3, 7)]
    engine = ScriptedEngine(backend())
    several = engine.submit(*samples)
    chain = engine.submit(windows[0], following=windows[1:])
    engine.run()
    assert tokens(several) == sum((decoded_alone(one) for one in samples), ())
    assert tokens(chain) == sum((decoded_alone(one) for one in windows), ())


def test_a_listener_receives_tokens_as_they_are_selected() -> None:
    received: list[tuple[int, int]] = []

    def listen(choices: object) -> None:
        received.extend((engine.steps, choice.token) for choice in choices)  # type: ignore[attr-defined]

    engine = ScriptedEngine(backend())
    engine.submit(endless(9, [4]))
    handle = engine.submit(endless(7, [5, 6]), listener=listen)
    engine.run()
    assert [token for _, token in received] == list(tokens(handle))
    assert [step for step, _ in received] == list(range(1, 8))


def test_a_cancelled_request_is_evicted_at_the_next_step() -> None:
    def go(step: int) -> None:
        if step == 3:
            gone.future.cancel()

    engine = ScriptedEngine(backend(), before_step=go)
    gone, stays = engine.submit(endless(20)), engine.submit(endless(8, [4, 5]))
    engine.run()
    assert engine.observer.rows == [2, 2, 2, 1, 1, 1, 1, 1]
    assert tokens(stays) == decoded_alone(endless(8, [4, 5]))


def test_a_request_cancelled_in_the_queue_is_never_begun() -> None:
    engine = ScriptedEngine(backend(), rows=1)
    first, gone = engine.submit(endless(5)), engine.submit(endless(5, [9]))
    gone.future.cancel()
    engine.run()
    assert tokens(first)
    assert engine.backend.calls.count("start 1") == 1


def test_only_the_request_whose_time_is_up_fails() -> None:
    def hurry(step: int) -> None:
        if step == 3:
            late.deadline = 0.0

    engine = ScriptedEngine(backend(), before_step=hurry)
    late, other = engine.submit(endless(20), seconds=60.0), engine.submit(endless(8, [4, 5]))
    never = engine.submit(endless(4), seconds=0.0)
    engine.run()
    for handle in (late, never):
        with pytest.raises(DeadlineError, match="the request was not done within"):
            handle.future.result(timeout=0)
    assert tokens(other) == decoded_alone(endless(8, [4, 5]))
    assert engine.observer.rows[3:] == [1] * 5


def test_only_the_request_that_makes_the_model_fail_fails() -> None:
    """The logits of one source are NaN from its third token on."""
    good = random_logits(VOCABULARY, seed=1, end=-9.0)

    def logits(source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        return good(source, history) * (np.nan if source == (7,) and len(history) > 2 else 1)

    sources = [[3, 4], [7], [5], [6, 6]]
    engine = ScriptedEngine(ScriptedBackend(logits))
    handles = [engine.submit(job(source, 6)) for source in sources]
    engine.run()
    bad = handles.pop(1)
    with pytest.raises(BackendError, match="the model's logits are not finite numbers"):
        bad.future.result(timeout=0)
    for source, handle in zip([[3, 4], [5], [6, 6]], handles, strict=True):
        single = ScriptedEngine(ScriptedBackend(good))
        expected = single.submit(job(source, 6))
        single.run()
        assert tokens(handle) == tokens(expected)
    assert engine.observer.failures == ["the model's logits are not finite numbers"]


def test_a_listener_receives_no_token_twice_after_a_failure() -> None:
    """The batch is decoded again from the beginning."""
    received: list[SelectedToken] = []

    def fail_once(step: int) -> None:
        if step == 4:
            raise BackendError("once")

    engine = ScriptedEngine(backend(), before_step=fail_once)
    handle = engine.submit(endless(7), listener=received.extend)
    other = engine.submit(endless(6, [8]))
    engine.run()
    assert (
        [choice.token for choice in received]
        == list(tokens(handle))
        == list(decoded_alone(endless(7)))
    )
    assert tokens(other) == decoded_alone(endless(6, [8]))


def test_without_enough_memory_requests_wait_for_each_other() -> None:
    jobs = varied(9)
    scripted = backend()
    scripted.most_rows = 3
    engine = ScriptedEngine(scripted)
    handles = [engine.submit(single) for single in jobs]
    engine.run()
    assert [tokens(handle) for handle in handles] == [decoded_alone(single) for single in jobs]


def test_a_request_for_which_memory_never_suffices_fails() -> None:
    scripted = backend()
    scripted.most_rows = 2
    engine = ScriptedEngine(scripted)
    wide, narrow = engine.submit(job([3], 5, Beam(4))), engine.submit(job([4], 5))
    engine.run()
    with pytest.raises(BackendError, match="no memory for 4 rows"):
        wide.future.result(timeout=0)
    assert tokens(narrow) == decoded_alone(job([4], 5))


def test_a_listener_that_fails_affects_only_its_own_request() -> None:
    def listen(choices: object) -> None:
        raise ValueError("broken")

    engine = ScriptedEngine(backend())
    broken = engine.submit(endless(6), listener=listen)
    other = engine.submit(endless(6, [5]))
    engine.run()
    with pytest.raises(ValueError, match="broken"):
        broken.future.result(timeout=0)
    assert tokens(other) == decoded_alone(endless(6, [5]))


def test_a_defect_fails_only_running_requests() -> None:
    def break_once(step: int) -> None:
        if step == 2:
            raise ZeroDivisionError("a defect")

    engine = ScriptedEngine(backend(), rows=1, before_step=break_once)
    handles = [engine.submit(endless(5)), engine.submit(endless(3, [6]))]
    engine.run()
    with pytest.raises(ZeroDivisionError):
        handles[0].future.result(timeout=0)
    assert tokens(handles[1]) == decoded_alone(endless(3, [6]))
    assert engine.observer.failures == ["ZeroDivisionError: a defect"]


@pytest.mark.parametrize("tokens_before", [0, 2])
def test_a_defect_fails_only_the_request_that_causes_it(tokens_before: int) -> None:
    """A defect is an exception that backends do not raise."""
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
def test_every_request_ends_if_one_failure_follows_another(
    first: Exception, second: Exception
) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise first
        if step in (4, 5, 6, 7):
            raise second

    engine = ScriptedEngine(backend(), before_step=fail)
    handles = [engine.submit(endless(9, [source])) for source in (3, 4)]
    engine.run()
    for handle in handles:
        assert handle.future.done()
        assert isinstance(handle.future.exception(timeout=0), type(second))
    assert (engine.worker.lost is LOST) == (second is LOST)


def test_a_lost_device_fails_all_requests() -> None:
    def lose(step: int) -> None:
        if step == 2:
            raise LOST

    engine = ScriptedEngine(backend(), rows=1, before_step=lose)
    handles = [engine.submit(endless(5)) for _ in range(3)]
    engine.run()
    for handle in handles:
        with pytest.raises(DeviceLostError):
            handle.future.result(timeout=0)
    assert engine.worker.lost is LOST


def test_a_cancelled_request_is_not_decoded_again_after_a_failure() -> None:
    def fail_once(step: int) -> None:
        if step == 3:
            gone.future.cancel()
            raise BackendError("once")

    engine = ScriptedEngine(backend(), before_step=fail_once)
    gone, stays = engine.submit(endless(20)), engine.submit(endless(8, [4, 5]))
    engine.run()
    assert engine.observer.rows == [2, 2, *[1] * 8]
    assert tokens(stays) == decoded_alone(endless(8, [4, 5]))


def test_isolated_requests_end_at_their_deadlines_and_others_wait_for_them() -> None:
    """After a failure, requests are decoded apart; the queue is not read meanwhile."""

    def act(step: int) -> None:
        if step == 2:
            raise BackendError("once")
        if step == 5:
            assert engine.observer.encodings == [1, 1]
            late.deadline = 0.0

    engine = ScriptedEngine(backend(), rows=1, before_step=act)
    late, waiting = engine.submit(endless(20), seconds=60.0), engine.submit(endless(3, [6]))
    engine.run()
    with pytest.raises(DeadlineError):
        late.future.result(timeout=0)
    assert tokens(waiting) == decoded_alone(endless(3, [6]))
    assert engine.observer.encodings == [1, 1, 1]
    assert engine.observer.failures == ["once"]
