"""No room for the bundle on disk, or in memory: a one-line error, and partial output is removed."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman import DragomanError, api
from dragoman.api import preflight
from dragoman.reference_model import load_checkpoint

Spawn = Callable[..., CompletedProcess[str]]


def limited(size: int) -> str:
    return f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"


def test_weights_that_do_not_fit(spawn: Spawn, checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    outcome = spawn("export", checkpoint, "-o", output, prelude=limited(50_000))
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line == f"Error: cannot write {output}: File too large; nothing was left behind"
    assert outcome.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_parity_record_that_does_not_fit(
    spawn: Spawn, bundle_copy: Path, checkpoint: Path
) -> None:
    before = (bundle_copy / "manifest.json").read_bytes()
    # Tokenizers, which are written to be compared, fit.
    outcome = spawn("verify", bundle_copy, checkpoint, prelude=limited(6000))
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1] == (
        f"Error: cannot write {bundle_copy / 'manifest.json'}: File too large"
    )
    assert (bundle_copy / "manifest.json").read_bytes() == before
    assert not list(bundle_copy.glob("*.partial"))


def test_engines_that_do_not_fit(spawn: Spawn, checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    outcome = spawn(
        *("build", checkpoint, "-o", output, "--target", "tensorrt-rtx", "--limit", 1),
        prelude=limited(1_500_000),
    )
    assert outcome.returncode == 2
    assert outcome.stderr.splitlines()[-1] == (
        f"Error: cannot write {output}: File too large; nothing was left behind"
    )
    assert list(tmp_path.iterdir()) == []


def test_room_is_checked_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million weights in int8 take 4 MB as they are exported, and 1.1 MB as they are stored."""
    free = {"free": 5_200_000}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(**free))
    output = tmp_path / "new" / "bundle"
    preflight.check_room(output, 1_000_000, "int8")
    free["free"] = 5_000_000
    with pytest.raises(DragomanError) as raised:
        preflight.check_room(output, 1_000_000, "int8")
    assert str(raised.value) == (
        f"{output}: expected 0.0051 GB of disk space to build 1.0 million weights in int8, found "
        f"0.005 GB at {tmp_path}; nothing was written"
    )


def test_room_and_memory_are_for_all_weights(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, counts = importlib.import_module("dragoman.api.build"), list[int]()
    monkeypatch.setattr(build, "check_room", lambda output, weights, _: counts.append(weights))

    def refuse(weights: int, precision: str) -> None:
        counts.append(weights)
        raise DragomanError(f"no memory for {precision}")

    monkeypatch.setattr(build, "check_memory", refuse)
    with pytest.raises(DragomanError, match="no memory for int8"):
        api.build(checkpoint, tmp_path / "bundle", precision="int8")
    stored = load_checkpoint(checkpoint).parameters()
    assert counts == [sum(weight.numel() for weight in stored)] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precision", "available", "allowed", "sentence"),
    [
        ("int8", 1.3e9, None, "11.8 GB of memory {what} in int8, found 10.3 GB available: {help}"),
        ("int8", 99e9, 8e9, "11.8 GB of memory {what} in int8, found 8.0 GB {limit}: {help}"),
        (
            "fp32",
            1.3e9,
            20e9,
            "22.8 GB of memory {what} in fp32, found 10.3 GB available: {help}, or --precision "
            "int8, which takes half",
        ),
        ("int8", 2.9e9, 20e9, None),
        ("fp16", 15e9, None, None),
    ],
)
def test_memory_is_checked_before_anything_is_written(
    precision: Any,
    available: float,
    allowed: float | None,
    sentence: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two billion weights, which have been read, so that 8 GB are taken."""
    monkeypatch.setattr(preflight, "memory", lambda: (64e9, available))
    monkeypatch.setattr(preflight, "free_swap", lambda: 1e9)
    monkeypatch.setattr(preflight, "resident_mb", lambda: (8_000.0, 9_000.0))
    monkeypatch.setattr(preflight, "cgroup_limits", lambda: (None, allowed))
    weights = 2_000_000_000
    if sentence is None:
        preflight.check_memory(weights, precision)
        return
    with pytest.raises(DragomanError) as raised:
        preflight.check_memory(weights, precision)
    words = {
        "what": "to build 2,000.0 million weights",
        "limit": "allowed for this container",
        "help": "build on a larger machine and copy the bundle, which takes less memory to run",
    }
    assert str(raised.value) == f"expected {sentence.format(**words)}; nothing was written"
