"""First in, first out; bounded; shared by several takers."""

from __future__ import annotations

import threading

import pytest

from dragoman.runtime.serving.engine.line import ClosedError, Line, OverloadedError


def line_of(most: int = 100, takers: int = 1, over: frozenset[str] = frozenset()) -> Line[str]:
    return Line(most, takers, lambda item, now: item in over)


def take(line: Line[str], taker: int = 0, *, busy: int = 0, most: int = 8) -> list[str] | None:
    return line.take(taker, busy=busy, most=most, fits=lambda items: True)


def put(line: Line[str], items: str, rows: int = 1) -> None:
    line.put([(item, rows) for item in items])


def test_first_in_first_out_as_many_as_there_is_room_for() -> None:
    line = line_of()
    put(line, "abcde")
    assert take(line, most=3) == ["a", "b", "c"]
    assert take(line, busy=2, most=4) == ["d", "e"]


def test_a_wide_one_waits_for_room_and_nobody_overtakes_it() -> None:
    line = line_of()
    put(line, "w", rows=6)
    put(line, "abc")
    assert take(line, busy=3, most=8) == []
    assert take(line, busy=2, most=8) == ["w"]


def test_one_that_is_wider_than_all_room_goes_alone() -> None:
    line = line_of()
    put(line, "w", rows=20)
    put(line, "a")
    assert take(line, most=8) == ["w"]


def test_takers_share_what_there_is() -> None:
    line = line_of(takers=2)
    put(line, "abcdef")
    assert take(line, 0) == ["a", "b", "c"]
    assert take(line, 1) == ["d", "e", "f"]
    put(line, "gh")
    assert take(line, 0, busy=3) == ["g"]
    assert take(line, 1, busy=3) == ["h"]


def test_rows_that_belong_together_join_while_there_is_room() -> None:
    """Both takers are busy with 4 rows, and a third request of 4 is more than half of what is left
    of either's share."""
    line = line_of(takers=2)
    put(line, "a", rows=4)
    assert take(line, 0, busy=0, most=64) == ["a"]
    put(line, "b", rows=4)
    assert take(line, 1, busy=0, most=64) == ["b"]
    put(line, "c", rows=4)
    assert take(line, 0, busy=4, most=64) == ["c"]
    put(line, "d", rows=4)
    assert take(line, 1, busy=5, most=8) == []


def test_few_wait_for_others_if_many_wait() -> None:
    """One place is free of 16, and 9 wait: joining is worth it for two."""
    line = line_of()
    put(line, "abcdefghi")
    assert take(line, busy=15, most=16) == []
    assert take(line, busy=14, most=16) == ["a", "b"]


def test_one_that_waits_alone_joins_at_once() -> None:
    line = line_of()
    put(line, "a")
    assert take(line, busy=15, most=16) == ["a"]


def test_too_many_are_refused_all_together() -> None:
    line = line_of(3)
    put(line, "ab")
    with pytest.raises(OverloadedError, match="expected at most 3 outputs to wait, found 2") as e:
        put(line, "cd")
    assert e.value.retry_after >= 1
    put(line, "c")
    assert take(line) == ["a", "b", "c"]
    put(line, "defg")  # more than may wait, but nobody does


def test_when_to_come_back_does_not_depend_on_what_was_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    line = line_of(3)
    for name in "abcdef":
        put(line, name)
        take(line, most=1)
    now += 8 * 3600
    put(line, "ghi")
    with pytest.raises(OverloadedError) as known:
        put(line, "j")
    assert known.value.retry_after == 1.0
    assert take(line, most=1) == ["g"]
    now += 50
    assert take(line, most=1) == ["h"]
    put(line, "jk")
    with pytest.raises(OverloadedError) as slow:
        put(line, "l")
    assert slow.value.retry_after == 60.0


def test_those_that_are_over_make_room() -> None:
    line = line_of(3, over=frozenset("b"))
    put(line, "abc")
    put(line, "d")
    assert take(line) == ["a", "c", "d"]


def test_what_was_taken_and_cannot_be_used_is_first_again() -> None:
    line = line_of()
    put(line, "abc")
    assert take(line, most=2) == ["a", "b"]
    line.put_back([("a", 1), ("b", 1)])
    assert take(line) == ["a", "b", "c"]


def test_what_follows_joins_a_full_or_closed_line() -> None:
    line = line_of(1)
    put(line, "a")
    line.put_following("b", 1)
    line.close()
    line.put_following("c", 1)
    assert take(line) == ["a", "b", "c"]
    assert take(line) is None
    with pytest.raises(ClosedError, match="shutting down"):
        put(line, "d")


def test_who_waits_for_work_is_woken() -> None:
    line, found = line_of(), []
    thread = threading.Thread(target=lambda: found.append(take(line)))
    thread.start()
    put(line, "a")
    thread.join()
    assert found == [["a"]]
    thread = threading.Thread(target=lambda: found.append(take(line)))
    thread.start()
    line.close()
    thread.join()
    assert found == [["a"], None]
