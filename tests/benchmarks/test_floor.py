"""The shortest step that a processor could do, by hand, and how far a contender is from it."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.benchmarks.compare.contenders.text import Workload
from dragoman.benchmarks.compare.record import as_record
from dragoman.benchmarks.compare.tasks.decoding import reached
from dragoman.benchmarks.compare.tasks.floor import Pace, best_pace, floors, measure_pace
from dragoman.benchmarks.compare.tasks.greedy import record_of
from dragoman.benchmarks.models.shapes import SHAPES

from .doubles import CIRCUMSTANCES

TINY = SHAPES["tiny"]  # 2 layers of 64, inner 128
CASE = ("contender", "threads", "batch_size")
PACE = Pace(1, 1.0, {"fp32": 2.0, "int8": 8.0})
WEIGHTS = 2 * (6 * 64 * 64 + 2 * 64 * 128) + 100 * 64
ENCODER = 2 * (6 * 64 * 64 + 2 * 64 * 128)


def found(precision: str, **changes: int) -> list[dict[str, Any]]:
    sizes = {"source_length": 10, "new_tokens": 8, "rounds": 1} | changes
    workload = Workload(batch_sizes=(1, 7), tokens=(1, 99), threads=(1,), **sizes)
    return list(map(dict, floors([PACE], {"ours": precision}, TINY, workload, 100)))


def test_in_fp32() -> None:
    for floor, batch in zip(found("fp32"), (1, 7), strict=True):
        cross, cached = 2 * 2 * 64 * 10, 2 * 2 * 64 * 4
        reading = (WEIGHTS * 4 + batch * (cross + cached) * 4) / 1e9
        products = batch * (WEIGHTS + cross + cached) / 2e9
        encoding = batch * 10 * ENCODER / 2e9 / 8
        assert [floor[n] for n in CASE] == ["ours", 1, batch]
        assert floor["reading_ms"] == pytest.approx(1e3 * reading, abs=1e-3)
        assert floor["products_ms"] == pytest.approx(1e3 * products, abs=1e-3)
        assert floor["ms"] == pytest.approx(1e3 * (max(reading, products) + encoding), abs=1e-3)


def test_in_int8_weights_and_caches_are_a_quarter() -> None:
    for floor, batch in zip(found("int8"), (1, 7), strict=True):
        cross, cached = 2 * 2 * 64 * 10, 2 * 2 * 64 * 4
        reading = (WEIGHTS + batch * (cross * 4 + cached)) / 1e9
        products = batch * WEIGHTS / 8e9 + batch * (cross + cached) / 2e9
        assert floor["reading_ms"] == pytest.approx(1e3 * reading, abs=1e-3)
        assert floor["products_ms"] == pytest.approx(1e3 * products, abs=1e-3)


def test_beams_read_the_keys_of_their_source_once() -> None:
    one, four = found("fp32")[0], found("fp32", num_beams=4)[0]
    cached = 2 * 2 * 64 * 4
    assert four["reading_ms"] - one["reading_ms"] == pytest.approx(3 * cached * 4 / 1e6, abs=2e-3)
    assert four["products_ms"] == pytest.approx(4 * one["products_ms"], abs=2e-3)


def test_a_pace_is_measured() -> None:
    pace = measure_pace(1)
    assert pace.threads == 1
    assert pace.gigabytes_per_second > 0
    assert pace.products.keys() == {"fp32", "int8"}
    assert min(pace.products.values()) > 0


def test_a_share_is_shown_where_both_are_known() -> None:
    cases = ("ours", 1, 1), ("ours", 1, 7), ("ours", 2, 1), ("peer", 1, 1)
    measured = [dict(zip(CASE, c, strict=True)) | {"ms_per_step": (4.0, 3.0, 5.0)} for c in cases]
    shown = zip(cases, (3.0, 1.0), strict=False)
    lowest = [dict(zip(CASE, c, strict=True)) | {"ms": ms} for c, ms in shown]
    figures = {"measurements": measured, "footprints": [], "failures": [], "costs": []}
    workload = Workload((1, 7), 1, 1, (1, 99), (1, 2), 1)
    record = as_record(
        record_of("a shape", workload, figures, paces=[PACE], floors=lowest), CIRCUMSTANCES
    )
    assert list(reached(record)) == [
        "1 thread: 1.0 GB/s are read, 10^9 products a second: 2 in fp32, 8 in int8",
        "floor of ours, and its share of a step: batch 1: 3.00 ms, 75%; batch 7: 1.00 ms, 25%",
    ]
    assert record["floors"] == lowest


def test_the_best_of_several_moments_counts() -> None:
    slow = Pace(2, 10.0, {"fp32": 60.0, "int8": 200.0})
    busy = Pace(2, 12.0, {"fp32": 50.0, "int8": 210.0})
    assert best_pace([slow, busy]) == Pace(2, 12.0, {"fp32": 60.0, "int8": 210.0})
    assert best_pace([slow]) == slow
