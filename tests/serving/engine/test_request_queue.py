"""The request queue is first in, first out, bounded, and shared by several workers."""

from __future__ import annotations

import threading

import pytest

from dragoman.runtime.serving.engine.request_queue import ClosedError, OverloadedError, RequestQueue


def queue_of(
    most: int = 100, workers: int = 1, over: frozenset[str] = frozenset()
) -> RequestQueue[str]:
    return RequestQueue(most, [8] * workers, lambda item, now: item in over)


def take(
    queue: RequestQueue[str], taker: int = 0, *, busy: int = 0, most: int = 8
) -> list[str] | None:
    return queue.take(taker, busy=busy, most=most, fits=lambda items: True)


def put(queue: RequestQueue[str], items: str, rows: int = 1) -> None:
    queue.put([(item, rows) for item in items])


def test_items_are_taken_in_order_as_far_as_there_is_room() -> None:
    queue = queue_of()
    put(queue, "abcde")
    assert take(queue, most=3) == ["a", "b", "c"]
    assert take(queue, busy=2, most=4) == ["d", "e"]


def test_a_wide_item_waits_for_room_and_no_other_overtakes_it() -> None:
    queue = queue_of()
    put(queue, "w", rows=6)
    put(queue, "abc")
    assert take(queue, busy=3, most=8) == []
    assert take(queue, busy=2, most=8) == ["w"]


def test_an_item_wider_than_all_room_is_taken_by_itself() -> None:
    queue = queue_of()
    put(queue, "w", rows=20)
    put(queue, "a")
    assert take(queue, most=8) == ["w"]


def test_workers_share_all_items() -> None:
    queue = queue_of(workers=2)
    put(queue, "abcdef")
    assert take(queue, 0) == ["a", "b", "c"]
    assert take(queue, 1) == ["d", "e", "f"]
    put(queue, "gh")
    assert take(queue, 0, busy=3) == ["g"]
    assert take(queue, 1, busy=3) == ["h"]


def test_workers_share_items_by_their_rows() -> None:
    """24 rows on GPUs of unequal memory: a third on the one with 4 rows of 12 would not fit."""
    queue: RequestQueue[str] = RequestQueue(100, [4, 8], lambda item, now: False)
    put(queue, "abcdefghi")
    assert take(queue, 0, most=4) == ["a", "b", "c"]
    assert take(queue, 1, most=8) == ["d", "e", "f", "g", "h", "i"]
    put(queue, "jkl")
    assert take(queue, 0, busy=4, most=4) == []
    assert take(queue, 1, busy=6, most=8) == ["j", "k"]


def test_a_worker_that_withdraws_leaves_its_items_to_the_others() -> None:
    queue = queue_of(workers=2)
    put(queue, "abcd")
    assert queue.withdraw(0) == []
    assert take(queue, 1) == ["a", "b", "c", "d"]
    put(queue, "ef")
    assert queue.withdraw(1) == ["e", "f"]
    with pytest.raises(ClosedError):
        put(queue, "g")


def test_rows_of_one_item_join_while_there_is_room() -> None:
    """Both workers are busy with 4 rows, and a third request of 4 is more than half of what is left
    of either's share."""
    queue = queue_of(workers=2)
    put(queue, "a", rows=4)
    assert take(queue, 0, busy=0, most=64) == ["a"]
    put(queue, "b", rows=4)
    assert take(queue, 1, busy=0, most=64) == ["b"]
    put(queue, "c", rows=4)
    assert take(queue, 0, busy=4, most=64) == ["c"]
    put(queue, "d", rows=4)
    assert take(queue, 1, busy=5, most=8) == []


def test_few_items_wait_for_others_if_many_wait() -> None:
    """One row of 16 is free, and 9 items wait: joining is worth it for two."""
    queue = queue_of()
    put(queue, "abcdefghi")
    assert take(queue, busy=15, most=16) == []
    assert take(queue, busy=14, most=16) == ["a", "b"]


def test_a_single_item_joins_at_once() -> None:
    queue = queue_of()
    put(queue, "a")
    assert take(queue, busy=15, most=16) == ["a"]


def test_too_many_items_are_refused_together() -> None:
    queue = queue_of(3)
    put(queue, "ab")
    with pytest.raises(OverloadedError, match="expected at most 3 outputs to wait, found 2") as e:
        put(queue, "cd")
    assert e.value.retry_after >= 1
    put(queue, "c")
    assert take(queue) == ["a", "b", "c"]
    put(queue, "defg")  # more than may wait, but none waits


def test_the_time_to_retry_depends_on_the_last_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    queue = queue_of(3)
    for name in "abcdef":
        put(queue, name)
        take(queue, most=1)
    now += 8 * 3600
    put(queue, "ghi")
    with pytest.raises(OverloadedError) as known:
        put(queue, "j")
    assert known.value.retry_after == 1.0
    assert take(queue, most=1) == ["g"]
    now += 50
    assert take(queue, most=1) == ["h"]
    put(queue, "jk")
    with pytest.raises(OverloadedError) as slow:
        put(queue, "l")
    assert slow.value.retry_after == 60.0


def test_items_that_are_over_make_room() -> None:
    queue = queue_of(3, over=frozenset("b"))
    put(queue, "abc")
    put(queue, "d")
    assert take(queue) == ["a", "c", "d"]


def test_items_that_are_put_back_are_first_again() -> None:
    queue = queue_of()
    put(queue, "abc")
    assert take(queue, most=2) == ["a", "b"]
    queue.put_back([("a", 1), ("b", 1)])
    assert take(queue) == ["a", "b", "c"]


def test_following_items_join_a_full_or_closed_queue() -> None:
    queue = queue_of(1)
    put(queue, "a")
    queue.put_following("b", 1)
    queue.close()
    queue.put_following("c", 1)
    queue.put_following("d", 1, is_first=True)
    assert take(queue) == ["d", "a", "b", "c"]
    assert take(queue) is None
    with pytest.raises(ClosedError, match="shutting down"):
        put(queue, "e")


def test_a_waiting_worker_is_woken() -> None:
    queue, found = queue_of(), []
    thread = threading.Thread(target=lambda: found.append(take(queue)))
    thread.start()
    put(queue, "a")
    thread.join()
    assert found == [["a"]]
    thread = threading.Thread(target=lambda: found.append(take(queue)))
    thread.start()
    queue.close()
    thread.join()
    assert found == [["a"], None]
