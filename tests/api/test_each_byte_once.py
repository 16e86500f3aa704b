"""The way of a weight from checkpoint to bundle: written at most twice, hashed once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import api
from dragoman.reference_model import ModelConfig, save_checkpoint
from dragoman.runtime.format import writing
from dragoman.runtime.format.manifest import Precision

from ..random_weights import random_transformer

SLACK = 2_000_000
"""Graphs, manifests, the compiler's caches of Python: whatever does not grow with the model."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 MB of weights, nothing tied."""
    config = ModelConfig(
        source_vocab_size=3001,
        target_vocab_size=3003,
        encoder_layers=2,
        decoder_layers=2,
        d_model=128,
        num_heads=4,
        d_ff=512,
        tie_target_output=False,
        max_source_positions=9,
        max_target_positions=7,
        dropout=0.0,
    )
    directory = tmp_path_factory.mktemp("checkpoints") / "large"
    save_checkpoint(random_transformer(config, seed=1), directory)
    return directory


class CountingHash:
    """SHA-256 that counts the bytes it hashes."""

    count = 0

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: bytes) -> None:
        CountingHash.count += len(data)
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@pytest.fixture
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Counting:
        sha256 = CountingHash

        @staticmethod
        def file_digest(*_: object) -> None:
            raise AssertionError("a file was hashed again after it was written")

    CountingHash.count = 0
    monkeypatch.setattr(writing, "hashlib", Counting)
    monkeypatch.setattr("dragoman.runtime.format.bundle.hashlib", Counting)
    yield


def written() -> int:
    """Bytes that this process has written, to files or elsewhere."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == "wchar":
            return int(value)
    raise AssertionError("no wchar")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/io is Linux's")
@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize(
    ("target", "precision"),
    [("neutral", "fp32"), ("cpu", "fp32"), ("cpu", "int8"), ("neutral", "fp16")],
)
def test_a_build(checkpoint: Path, tmp_path: Path, target: str, precision: Precision) -> None:
    before = written()
    built = api.build(
        checkpoint, tmp_path / "out", target=target, precision=precision, limit=1, threads=1
    )
    size = built.bundle.size
    neutral = (checkpoint / "model.safetensors").stat().st_size
    assert CountingHash.count == size
    assert written() - before <= neutral + size + SLACK


@pytest.mark.usefixtures("_counted")
def test_a_build_of_engines_is_hashed_once(checkpoint: Path, tmp_path: Path) -> None:
    built = api.build(checkpoint, tmp_path / "out", target="tensorrt-rtx", limit=1, threads=1)
    assert CountingHash.count == built.bundle.size
