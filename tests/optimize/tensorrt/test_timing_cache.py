"""With a double of IBuilderConfig: TensorRT-RTX, which builds here, keeps no timings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.optimize.tensorrt.timing_cache import (
    load_timing_cache,
    save_timing_cache,
    timing_cache_file,
)
from dragoman.runtime.backends.tensorrt.packages import Package

TENSORRT = Package("tensorrt", SimpleNamespace(), "11.4.0.106", "13")


class Cache:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data


class Config:
    """Takes caches that begin with its version, as TensorRT does."""

    def __init__(self) -> None:
        self.cache: Cache | None = None

    def create_timing_cache(self, data: bytes) -> Cache:
        return Cache(data)

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if cache.data and not cache.data.startswith(b"11.4"):
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache


def test_a_build_reads_the_timings_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "cache"
    first, second = Config(), Config()
    assert load_timing_cache(first, file) is None
    assert first.cache is not None
    first.cache.data = b"11.4 timings"
    assert save_timing_cache(first, file) is None
    assert [p.name for p in file.parent.iterdir()] == ["cache"]
    assert load_timing_cache(second, file) is None
    assert second.cache is not None and second.cache.data == b"11.4 timings"


def test_a_cache_of_another_version_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.write_bytes(b"10.16 timings")
    config = Config()
    warning = load_timing_cache(config, file)
    assert (
        warning is not None and str(file) in warning and "starting with an empty cache" in warning
    )
    assert config.cache is not None and config.cache.data == b""


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    config = Config()
    load_timing_cache(config, tmp_path / "file" / "cache")
    warning = save_timing_cache(config, tmp_path / "file" / "cache")
    assert warning is not None and "timing cache not kept" in warning


def test_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert timing_cache_file(TENSORRT) == tmp_path / "dragoman" / "tensorrt-11.4.0.106.timing"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert timing_cache_file(TENSORRT) == (
        Path.home() / ".cache" / "dragoman" / "tensorrt-11.4.0.106.timing"
    )
    rtx = Package("tensorrt-rtx", SimpleNamespace(), "1.7.1.116", "13")
    assert timing_cache_file(rtx) is None
