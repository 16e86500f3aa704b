"""How many loops and threads run a bundle: as asked, as measured, or a loop for each core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.benchmarks.arrangement import arrangements, try_arrangements
from dragoman.errors import DragomanError
from dragoman.runtime import read_bundle
from dragoman.runtime.format.manifest import Manifest
from dragoman.runtime.serving import arrangement as module
from dragoman.runtime.serving.arrangement import Arrangement, arrangement, recall, remember
from dragoman.runtime.serving.engine.engine import threads_of

Bundles = Callable[[str], Path]


@pytest.fixture
def manifest(bundle: Bundles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Manifest:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "usable_cores", lambda: 6)
    return read_bundle(bundle("letters")).manifest


@pytest.mark.parametrize(
    ("loops", "threads", "expected"),
    [(None, None, (6, 1)), (2, None, (2, 3)), (None, 4, (1, 4)), (4, 5, (4, 5)), (9, None, (9, 1))],
)
def test_what_is_not_asked_for_fills_the_cores(
    manifest: Manifest, loops: int | None, threads: int | None, expected: tuple[int, int]
) -> None:
    assert arrangement(manifest, loops=loops, threads=threads, rows=None) == (*expected, 64)
    assert arrangement(manifest, loops=loops, threads=threads, rows=7) == (*expected, 7)


def test_what_was_measured_is_used_unless_something_is_asked_for(manifest: Manifest) -> None:
    assert recall(manifest) is None
    assert remember(manifest, Arrangement(3, 2, 16)) is None
    assert arrangement(manifest, loops=None, threads=None, rows=None) == (3, 2, 16)
    assert arrangement(manifest, loops=None, threads=None, rows=5) == (3, 2, 5)
    assert arrangement(manifest, loops=1, threads=None, rows=None) == (1, 6, 64)
    files = tuple(dataclasses.replace(f, sha256="0" * 64) for f in manifest.files)
    assert recall(dataclasses.replace(manifest, files=files)) is None, "another bundle"


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", '["a", 1, 1]', "[0, 1, 1]", "[100000, 9, 1]", "{}"]
)
def test_what_makes_no_sense_is_as_nothing(
    manifest: Manifest, tmp_path: Path, content: str
) -> None:
    remember(manifest, Arrangement(3, 2, 16))
    (file,) = (tmp_path / "dragoman" / "arrangements").iterdir()
    file.write_text(content)
    assert arrangement(manifest, loops=None, threads=None, rows=None) == (6, 1, 64)


def test_a_cache_that_cannot_be_written_is_a_warning(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "not kept for dragoman serve" in (remember(manifest, Arrangement(1, 1, 1)) or "")


def test_too_many_threads_are_refused(manifest: Manifest) -> None:
    with pytest.raises(DragomanError, match="threads: expected 1 to"):
        arrangement(manifest, loops=1000, threads=1000, rows=None)


def test_loops_compute_in_their_own_threads_and_share_the_others() -> None:
    assert [threads_of(*pair) for pair in ((1, 1), (1, 4), (4, 1), (2, 3))] == [1, 4, 1, 5]


def test_all_ways_to_divide_the_cores() -> None:
    assert arrangements(1, [8]) == [(1, 1, 8)]
    assert arrangements(6, [8]) == [(1, 6, 8), (2, 3, 8), (4, 1, 8), (6, 1, 8)]


@pytest.mark.parametrize("name", ["letters", "vectors", "verses"])
def test_every_arrangement_is_tried(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("dragoman.benchmarks.arrangement.usable_cores", lambda: 2)
    tried = try_arrangements(bundle(name), requests=5)
    assert {each.arrangement[:2] for each in tried} == {(1, 2), (2, 1)}
    speeds = [each.per_second for each in tried]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] > 0


def test_speech_has_no_lengths_to_try(bundle: Bundles) -> None:
    with pytest.raises(DragomanError, match="expected a model of texts, found one of speech"):
        try_arrangements(bundle("speech"))
