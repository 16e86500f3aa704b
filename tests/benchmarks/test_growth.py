"""Growth: which points are measured, what the record and the picture have, failures by name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.benchmarks.compare.__main__ import TASKS
from dragoman.benchmarks.compare.picture_style import MARKERS, write
from dragoman.benchmarks.compare.record import as_record
from dragoman.benchmarks.compare.rounds import Contender, Failure, unchanged
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks import growth
from dragoman.benchmarks.compare.tasks.growth import (
    GROWTH,
    NAMES,
    Point,
    batches,
    contenders,
    measure_growth,
    picture,
)
from dragoman.benchmarks.peers.interface import Batch, Rows

from .doubles import (
    CIRCUMSTANCES,
    compared,
    load_ending_early,
    load_sevens,
    load_short_of_memory,
)

SERIES = {
    "by_batch": [Point(1, 6, 5), Point(2, 6, 5), Point(4, 6, 5)],
    "by_source": [Point(2, 3, 5), Point(2, 6, 5), Point(2, 9, 5)],
    "by_output": [Point(1, 6, 5), Point(1, 6, 8)],
}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "TURN_SECONDS", 0.0)


def test_batches_have_the_sizes_of_their_points() -> None:
    points = [Point(1, 6, 5), Point(4, 3, 7)]
    found = batches(points, (1, 59))
    assert [*found] == ["batch 1, source 6, 5 new tokens", "batch 4, source 3, 7 new tokens"]
    for point, batch in zip(points, found.values(), strict=True):
        assert [len(source) for source in batch.sources] == [point.source_length] * point.batch_size
        assert {token for source in batch.sources for token in source} <= {*range(1, 59)}
        assert batch.new_tokens == point.new_tokens
    assert found == batches(points, (1, 59))


def test_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    names = [contender.name for contender in contenders()]
    assert names == [name for name in NAMES if name != "CTranslate2 int8"]
    assert [c.name for c in contenders() if c.peer] == [
        "CTranslate2 float32",
        "OpenVINO int8",
    ]
    recurrent = [contender.name for contender in contenders(recurrent=True)]
    assert recurrent == [name for name in names if "int4" not in name] + [
        "Dragoman int8, recurrent"
    ]


def test_failures_are_named_while_others_go_on(tmp_path: Path) -> None:
    stages: list[str] = []
    figures = measure_growth(
        Run(tmp_path, stages.append),
        [
            Contender("ours", unchanged, load_sevens),
            Contender("small", unchanged, load_short_of_memory),
            Contender("early", unchanged, load_ending_early),
            Contender("theirs", unchanged, load_sevens, peer=True),
        ],
        SERIES,
        (1, 59),
        threads=1,
        rounds=2,
    )
    assert figures["failures"] == [
        Failure("early", "decoding: expected 1 rows of 5 new tokens, found 1 rows of [1]"),
        Failure("small", "working: MemoryError: too many sources"),
    ]
    for name, points in SERIES.items():
        fields = ("contender", "batch_size", "source_length", "new_tokens")
        found = [tuple(m[field] for field in fields) for m in figures[name]]
        assert found == [(name, *point) for name in ("ours", "theirs") for point in points]
    for m in (*figures["by_batch"], *figures["by_source"]):
        median, lowest, highest = m["ms_per_step"]
        assert 0 <= lowest <= median <= highest
        assert m["peer"] == (m["contender"] == "theirs")
    assert figures["by_batch"][1] == figures["by_source"][1]  # of the point where the series cross
    assert sum(stage.endswith("round 2 of 2") for stage in stages) == 6


def test_nothing_is_left_of_contenders_that_all_fail(tmp_path: Path) -> None:
    early: Contender[Batch, Rows] = Contender("early", unchanged, load_ending_early)
    figures = measure_growth(Run(tmp_path), [early], SERIES, (1, 59), threads=1, rounds=1)
    assert (figures["by_batch"], figures["by_source"]) == ([], [])
    assert [failure.contender for failure in figures["failures"]] == ["early"]


def a_record() -> dict[str, Any]:
    """Of every contender; figures grow with batches and sources."""

    def series(points: list[Point]) -> list[dict[str, Any]]:
        return [
            {
                "contender": name,
                "peer": "Dragoman" not in name,
                **p._asdict(),
                "ms_per_step": (sum(p) + i, 1.0, 900.0),
                "tokens_per_second": 1e4 / sum(p),
            }
            for i, name in enumerate(NAMES)
            for p in points
        ]

    figures = {
        "shape": "Marian base",
        "new_tokens": 5,
        "threads": 2,
        "rounds": 3,
        **{name: series(points) for name, points in SERIES.items()},
        "failures": [Failure("abacus", "no beads")],
    }
    return as_record(figures, CIRCUMSTANCES)


def test_a_picture_has_all_contenders(tmp_path: Path) -> None:
    drawn = picture(a_record())
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawn.axes] == [
        ("sources in the batch", "ms per step"),
        ("sources in the batch", "tokens per second"),
        ("tokens of the source", "ms per step"),
        ("tokens of the source", "tokens per second"),
        ("tokens of the output", "ms per step"),
        ("tokens of the output", "tokens per second"),
    ]
    for axes, ticks in zip(drawn.axes, ["124", "124", "369", "369", "58", "58"], strict=True):
        assert "".join(label.get_text() for label in axes.get_xticklabels()) == ticks
        lines = axes.get_lines()
        assert tuple(line.get_marker() for line in lines) == MARKERS
        assert [line.get_linestyle() for line in lines] == [*("-" * 3), *["--"] * 3]
    assert [*drawn.axes[2].get_lines()[1].get_ydata()] == [11, 14, 17]  # type: ignore[misc]
    write(drawn, tmp_path / "growth.svg")
    text = (tmp_path / "growth.svg").read_text("utf-8")
    assert all(f">{name}</text>" in text for name in NAMES)
    write(picture(a_record()), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text("utf-8") == text


def test_tables_name_points_and_failures(capsys: pytest.CaptureFixture[str]) -> None:
    TASKS["growth"].show(a_record())
    shown = capsys.readouterr().out
    assert shown.count("Dragoman int4") == 8
    assert re.search(r"OpenVINO int8 +│ +2 │ +9 │ +21.00 │ +1.00 - 900.00 │ +625 ", shown)
    assert re.search(r"OpenVINO int8 +│ +1 │ +6 │ +8 │ +20.00 │ +1.00 - 900.00 │ +667 ", shown)
    assert "not measured: abacus: no beads" in shown


SMALL = ["growth", "--shape", "tiny", "--vocab-size", "60", "--rounds", "1", "--threads", "1"]


def test_the_command_writes_a_record_and_a_picture(tmp_path: Path) -> None:
    options = ["--batch-size", "2", "--batch-size", "1", "--source-length", "4"]
    options += ["--new-tokens", "3", "--only", "Dragoman int8", "--output", str(tmp_path)]
    compared(*SMALL, *options)
    record = json.loads((tmp_path / "growth-tiny-1-threads.json").read_text("utf-8"))
    assert [(m["batch_size"], m["source_length"]) for m in record["by_batch"]] == [(1, 32), (2, 32)]
    (found,) = record["by_source"]
    assert (found["contender"], found["peer"]) == ("Dragoman int8", False)
    assert (found["batch_size"], found["source_length"]) == (1, 4)
    assert 0 < found["tokens_per_second"] == pytest.approx(1e3 / found["ms_per_step"][0], rel=0.05)
    assert (record["by_output"], record["failures"]) == ([], [])
    assert record["command"].startswith("python -m dragoman.benchmarks.compare")
    assert ">Dragoman int8</text>" in (tmp_path / "growth-tiny-1-threads.svg").read_text("utf-8")


def test_by_default_both_sizes_double() -> None:
    defaults = {option.name: option.default for option in GROWTH.command().params}
    assert defaults["batch_sizes"] == (1, 2, 4, 8, 16, 32, 64)
    assert defaults["source_lengths"] == (8, 16, 32, 64, 128, 256, 512)
    assert (defaults["source_batch"], defaults["new_tokens"], defaults["threads"]) == (1, 64, 2)
