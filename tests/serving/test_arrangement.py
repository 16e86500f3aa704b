"""Numbers of workers and threads: from options, from measurements, or one worker per core."""

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
    ("workers", "threads", "expected"),
    [(None, None, (6, 1)), (2, None, (2, 3)), (None, 4, (1, 4)), (4, 5, (4, 5)), (9, None, (9, 1))],
)
def test_defaults_fill_the_cores(
    manifest: Manifest, workers: int | None, threads: int | None, expected: tuple[int, int]
) -> None:
    assert arrangement(manifest, workers=workers, threads=threads, batch_size=None) == (
        *expected,
        64,
    )
    assert arrangement(manifest, workers=workers, threads=threads, batch_size=7) == (*expected, 7)


def test_a_measured_arrangement_is_used_unless_options_are_given(manifest: Manifest) -> None:
    assert recall(manifest) is None
    assert remember(manifest, Arrangement(3, 2, 16)) is None
    assert arrangement(manifest, workers=None, threads=None, batch_size=None) == (3, 2, 16)
    assert arrangement(manifest, workers=None, threads=None, batch_size=5) == (3, 2, 5)
    assert arrangement(manifest, workers=1, threads=None, batch_size=None) == (1, 6, 64)
    files = tuple(dataclasses.replace(f, sha256="0" * 64) for f in manifest.files)
    assert recall(dataclasses.replace(manifest, files=files)) is None, "another bundle"


def test_a_gpu_has_one_worker_and_measurements_of_its_own(manifest: Manifest) -> None:
    def chosen(workers: int | None = None, batch_size: int | None = None) -> Arrangement:
        options = {"workers": workers, "threads": None, "batch_size": batch_size}
        return arrangement(manifest, **options, on_gpu=True)

    remember(manifest, Arrangement(3, 2, 16))
    assert chosen() == (1, 1, None), "the rows depend on the memory"
    assert chosen(2, 7) == (2, 1, 7)
    assert remember(manifest, Arrangement(2, 1, 128), on_gpu=True) is None
    assert chosen() == (2, 1, 128)
    assert arrangement(manifest, workers=None, threads=None, batch_size=None) == (3, 2, 16)


@pytest.mark.parametrize(
    "content", ["", "[1, 2]", '["a", 1, 1]', "[0, 1, 1]", "[100000, 9, 1]", "{}"]
)
def test_an_invalid_record_is_ignored(manifest: Manifest, tmp_path: Path, content: str) -> None:
    remember(manifest, Arrangement(3, 2, 16))
    (file,) = (tmp_path / "dragoman" / "arrangements").iterdir()
    file.write_text(content)
    assert arrangement(manifest, workers=None, threads=None, batch_size=None) == (6, 1, 64)


def test_a_cache_that_cannot_be_written_is_a_warning(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "not kept for dragoman serve" in (remember(manifest, Arrangement(1, 1, 1)) or "")


def test_too_many_threads_are_refused(manifest: Manifest) -> None:
    with pytest.raises(DragomanError, match="threads: expected 1 to"):
        arrangement(manifest, workers=1000, threads=1000, batch_size=None)


def test_workers_compute_in_their_own_threads_and_share_the_others() -> None:
    assert [threads_of(*pair) for pair in ((1, 1), (1, 4), (4, 1), (2, 3))] == [1, 4, 1, 5]


def test_all_ways_to_divide_the_cores() -> None:
    assert arrangements(1, [8]) == [(1, 1, 8)]
    assert arrangements(6, [8]) == [(1, 6, 8), (2, 3, 8), (4, 1, 8), (6, 1, 8)]


@pytest.mark.parametrize("name", ["letters", "vectors", "verses"])
def test_every_arrangement_is_measured(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("dragoman.benchmarks.arrangement.usable_cores", lambda: 2)
    tried = try_arrangements(bundle(name), requests=5)
    assert {each.arrangement[:2] for each in tried} == {(1, 2), (2, 1)}
    speeds = [each.per_second for each in tried]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] > 0


def test_speech_models_are_not_measured(bundle: Bundles) -> None:
    with pytest.raises(DragomanError, match="expected a model of texts, found one of speech"):
        try_arrangements(bundle("speech"))
