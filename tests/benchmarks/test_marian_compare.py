"""Comparisons of texts: contenders that fail are reported and left out, the others are compared
with the reference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.benchmarks.compare.contenders import text as c
from dragoman.benchmarks.compare.rounds import unchanged
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.decoding import measure_decoding
from dragoman.benchmarks.peers.interface import Batch
from dragoman.benchmarks.processes import ProcessError

from .doubles import prepare_nothing

WORKLOAD = c.Workload(
    batch_sizes=(1, 3), source_length=6, new_tokens=4, tokens=(1, 199), threads=(1,), rounds=2
)


def test_failures_are_named_and_left_out(marian: Path, tmp_path: Path) -> None:
    [good] = c.dragoman_contenders(c.load_bundle, [c.BundleKind("good", "neutral", "fp32")])
    [unknown] = c.dragoman_contenders(c.load_bundle, [c.BundleKind("unknown", "moon", "fp32")])
    not_a_bundle = c.TextContender("no bundle", unchanged, c.load_bundle)
    no_torch = c.TextContender("no torch", unchanged, c.load_reference)
    run = Run(tmp_path, only=["good", "unknown", "no bundle", "no torch"])
    chosen = run.chosen([c.reference(c.load_reference), unknown, not_a_bundle, no_torch, good])
    assert [contender.timed for contender in chosen] == [False, True, True, True, True]
    figures = measure_decoding(run, chosen, WORKLOAD, marian)
    failures = figures["failures"]
    assert [failure.contender for failure in failures] == ["unknown", "no bundle", "no torch"]
    assert "moon" in failures[0].reason
    assert "torch" in failures[2].reason
    measured = [(m["contender"], m["batch_size"], m["identical"]) for m in figures["measurements"]]
    assert measured == [("good", 1, 1), ("good", 3, 3)]
    for m in figures["measurements"]:
        median, lowest, highest = m["ms_per_step"]
        assert 0 < lowest <= median <= highest
        assert m["ratio"] is None
    assert [f.contender for f in figures["footprints"]] == ["good"]


def test_beams_of_all_sources_fit_in_one_batch() -> None:
    options_given: dict[str, Any] = {}

    class Model:
        def generate(self, sources: list[list[int]], **options: Any) -> list[SimpleNamespace]:
            options_given.update(options)
            return [SimpleNamespace(tokens=(5, 6)) for _ in sources]

    rows = c.generator(cast("Any", Model()))(Batch([[3], [4, 5], [6]], new_tokens=2, num_beams=4))
    assert rows == [[5, 6]] * 3
    assert (options_given["num_beams"], options_given["max_batch_size"]) == (4, 12)


def test_a_broken_reference_is_an_error(tmp_path: Path) -> None:
    broken = c.TextContender(c.REFERENCE, prepare_nothing, c.load_reference, required=True)
    with pytest.raises(ProcessError, match=r"Reference .*: preparing: expected another"):
        measure_decoding(Run(tmp_path), [broken], WORKLOAD, tmp_path)
