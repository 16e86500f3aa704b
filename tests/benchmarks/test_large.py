"""Large models: what is measured of each contender, failures by name, the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.benchmarks.compare.contenders.speech import Transcript
from dragoman.benchmarks.compare.contenders.text import TextContender
from dragoman.benchmarks.compare.rounds import Contender, Turn, Turns
from dragoman.benchmarks.compare.tasks import large
from dragoman.benchmarks.peers.interface import Stages

from .doubles import compared, load_ending_early, load_sevens

MEGABYTE = 10**6


def converted(checkpoint: Path, directory: Path, *, megabytes: int) -> Path:
    """Write files of this size, and take as much memory."""
    directory.mkdir()
    (directory / "weights").write_bytes(b"\1" * (megabytes * MEGABYTE))
    assert (checkpoint / "model.safetensors").exists()
    return directory


def refused(checkpoint: Path, directory: Path) -> Path:
    raise DragomanError("too large")


def doubles(*_: object) -> Sequence[TextContender]:
    return [
        Contender("ours", partial(converted, megabytes=300), load_sevens),
        Contender("theirs", partial(converted, megabytes=2), load_sevens, peer=True),
        Contender("early", partial(converted, megabytes=1), load_ending_early, peer=True),
        Contender("refusing", refused, load_sevens, peer=True),
    ]


def test_the_command_measures_builds_and_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "contenders", doubles)
    monkeypatch.setattr(large, "TURN_SECONDS", 0.0)
    given = ["--shape", "nllb-tiny", "--rounds", "2", "--new-tokens", "5", "--batch-size", "3"]
    compared("large", *given, "--output", tmp_path)
    record = json.loads((tmp_path / "large-nllb-tiny-2-threads.json").read_text("utf-8"))
    ours, theirs = record["contenders"]
    assert [ours["contender"], theirs["contender"]] == ["ours", "theirs"]
    assert (ours["disk_mb"], theirs["disk_mb"]) == (300, 2)
    assert ours["build_peak_mb"] >= theirs["build_peak_mb"] + 290
    for row in (ours, theirs):
        assert 0 < row["loaded_mb"] <= row["peak_mb"] + 1
        (pace,) = row["ms_per_step"]
        assert 0 <= pace[1] <= pace[0] <= pace[2]
    reasons = {failure["contender"]: failure["reason"] for failure in record["failures"]}
    assert reasons["refusing"] == "building: too large"
    assert reasons["early"].startswith("decoding: expected 3 rows of 5 new tokens")
    stored = compared("tables", "large", tmp_path / "large-nllb-tiny-2-threads.json")
    assert "| ours |" in stored and "ms/step, batch 3" in stored


def test_a_window_of_audio_in_place_of_steps() -> None:
    untimed = Transcript("", 4.0, None)
    timed = untimed._replace(stages=Stages(3.0, 0.5, 10))

    def row(name: str, transcript: Transcript) -> dict[str, Any]:
        turns = Turns(Turn([untimed], 9.0), [Turn([transcript], 9.0)] * 2)
        sizes = dict.fromkeys(("build_peak_mb", "disk_mb", "loaded_mb"), 2000.0)
        seconds = {"build_seconds": 100.0, "load_seconds": 1.0, "ms_per_step": []}
        return {"contender": name, **sizes, **seconds, **large.heard(turns)}

    rows = [row("ours", timed), row("theirs", untimed)]
    shape = {"shape": "Whisper", "threads": 2, "rounds": 2, "batch_sizes": []}
    (table,) = large.tables(shape | {"contenders": rows})
    ours, theirs = table.markdown().splitlines()[-2:]
    assert ours.endswith("| 4.0 | 3.0 | 50.0 |")
    assert theirs.startswith("| theirs |") and "| 4.0 |" in theirs


def test_who_takes_part() -> None:
    names = [contender.name for contender in large.contenders(2)]
    assert names[:5] == [
        *("Dragoman fp32", "Dragoman int8", "Dragoman int4"),
        *("CTranslate2 float32", "CTranslate2 int8"),
    ]
    assert names[5:7] == ["Optimum-ONNX fp32", "Optimum-ONNX int8"]
    assert all(name.startswith("OpenVINO ") for name in names[7:])
    assert [contender.name for contender in large.whisper_contenders(2)] == [
        *("Dragoman fp32", "Dragoman int8", "Dragoman int4"),
        *("faster-whisper float32", "faster-whisper int8", "whisper.cpp f16", "whisper.cpp q8_0"),
    ]
