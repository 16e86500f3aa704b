"""Comparisons: those that fail are named and left out, the others are held to the reference."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dragoman.benchmarks import contenders as c
from dragoman.benchmarks.measuring import Work, measure
from dragoman.benchmarks.peers.marian import marian_shape, write_random_marian
from dragoman.benchmarks.workers import ContenderError

WORK = Work(batch_sizes=(1, 3), source_length=6, new_tokens=4, tokens=(1, 199), threads=1, rounds=2)
REFERENCE = c.Contender(c.REFERENCE, c.as_it_is, c.load_reference, needs_torch=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("marian")
    write_random_marian(marian_shape("tiny", vocab_size=200), directory, seed=1)
    return directory


def test_failures_are_named_and_left_out(checkpoint: Path, tmp_path: Path) -> None:
    [good] = c.dragoman_contenders([("good", "neutral", "fp32")])
    [unknown] = c.dragoman_contenders([("unknown", "moon", "fp32")])
    not_a_bundle = c.Contender("no bundle", c.as_it_is, c.load_dragoman)
    no_torch = c.Contender("no torch", c.as_it_is, c.load_reference)
    results = measure(
        [REFERENCE, unknown, not_a_bundle, no_torch, good],
        {"good", "unknown", "no bundle", "no torch"},
        WORK,
        checkpoint=checkpoint,
        directory=tmp_path,
    )
    assert [failure.contender for failure in results.failures] == [
        "unknown",
        "no bundle",
        "no torch",
    ]
    assert "moon" in results.failures[0].reason
    assert "torch" in results.failures[2].reason
    measured = [(m.contender, m.batch_size, m.identical) for m in results.measurements]
    assert measured == [("good", 1, 1), ("good", 3, 3)]
    for m in results.measurements:
        median, lowest, highest = m.ms_per_step
        assert 0 < lowest <= median <= highest
        assert m.ratio is None
    assert [f.contender for f in results.footprints] == ["good"]


def test_nothing_is_said_without_the_reference(checkpoint: Path, tmp_path: Path) -> None:
    prepare = partial(c.prepare_bundle, target="moon", precision="fp32")
    broken = c.Contender(c.REFERENCE, prepare, c.load_reference)
    with pytest.raises(ContenderError, match="Reference"):
        measure([broken], set(), WORK, checkpoint=checkpoint, directory=tmp_path)
