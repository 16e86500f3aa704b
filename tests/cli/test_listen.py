"""Speech from standard input and from a microphone, written while it is spoken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, CompletedProcess

import numpy as np
import pytest

from dragoman.runtime import LiveUpdate, load
from dragoman.runtime.decoding.results import clock

from ..speech_models import noise
from .test_transcripts import speaker

__all__ = ["speaker"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Dragoman = Callable[..., CompletedProcess[str]]

RAW = np.round(noise(3.3, 12) * 2**15).astype("<i2").tobytes()
OPTIONS = ("--language", "de", "--no-vad", "--threads", 1)


@pytest.fixture(scope="module")
def updates(speaker: Path) -> list[LiveUpdate]:
    with load(speaker, threads=1) as model:
        return list(model.listen([RAW], language="de", vad=False))


def lines(updates: list[LiveUpdate]) -> str:
    return "".join(f"{(u.segment.text or '').strip()}\n" for u in updates if u.segment is not None)


def test_words_and_lines(spawn: Dragoman, speaker: Path, updates: list[LiveUpdate]) -> None:
    done = spawn("listen", speaker, *OPTIONS, stdin=RAW)
    assert (done.returncode, done.stdout, done.stderr) == (0, lines(updates), "")
    timed = spawn("listen", speaker, *OPTIONS, "--timestamps", stdin=RAW)
    assert timed.stdout.splitlines() == [
        f"[{clock(u.segment.start)} --> {clock(u.segment.end)}] {(u.segment.text or '').strip()}"
        for u in updates
        if u.segment is not None
    ]
    found = spawn("listen", speaker, *OPTIONS, "--json", stdin=RAW).stdout.splitlines()
    data = [json.loads(line) for line in found]
    assert [each["text"] for each in data] == [u.text for u in updates]
    ends = [each["segment"] for each in data if each["segment"] is not None]
    assert [each["text"] for each in ends] == [
        u.segment.text for u in updates if u.segment is not None
    ]
    assert all({"start", "end", "text", "probability"} == set(w) for s in ends for w in s["words"])


def test_noise_is_no_speech(spawn: Dragoman, speaker: Path) -> None:
    done = spawn("listen", speaker, "--threads", 1, stdin=RAW)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_words_are_written_while_others_arrive(speaker: Path, updates: list[LiveUpdate]) -> None:
    """Ctrl-C ends the input: what was said before is written."""
    command = [sys.executable, "-m", "dragoman", "listen", str(speaker), *map(str, OPTIONS)]
    first = next(u.segment for u in updates if u.segment is not None)
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(RAW)
        process.stdin.flush()
        line = process.stdout.readline().decode()
        assert line.strip() == (first.text or "").strip()
        for _ in range(lines(updates).count("\n") - 2):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, problem = process.stdout.read().decode(), process.stderr.read()
    assert (process.returncode, problem) == (0, b"")
    assert lines(updates).endswith(rest)


def test_half_a_sample(spawn: Dragoman, speaker: Path, updates: list[LiveUpdate]) -> None:
    done = spawn("listen", speaker, *OPTIONS, stdin=RAW + b"\x00")
    assert (done.returncode, done.stdout) == (2, lines(updates))
    assert done.stderr == "Error: expected samples of two bytes, found one byte more\n"


MICROPHONE = """
import sys, types
module = types.ModuleType("sounddevice")
class PortAudioError(Exception): pass
class RawInputStream:
    def __init__(self, rate, *, channels, dtype, callback):
        assert (rate, channels, dtype) == (16000, 1, "int16")
        self._callback = callback
    def __enter__(self):
        data = sys.stdin.buffer.read()
        if not data:
            raise PortAudioError("no input device")
        for begin in range(0, len(data), 2002):
            self._callback(memoryview(data)[begin : begin + 2002], 1001, None, None)
    def __exit__(self, *_): pass
module.RawInputStream, module.PortAudioError = RawInputStream, PortAudioError
sys.modules["sounddevice"] = module
import queue
class Ending(queue.SimpleQueue):
    def get(self):
        if self.empty():
            raise KeyboardInterrupt
        return super().get()
queue.SimpleQueue = Ending
"""


def test_a_microphone(spawn: Dragoman, speaker: Path, updates: list[LiveUpdate]) -> None:
    """One that records what it is given, until Ctrl-C."""
    done = spawn("listen", speaker, *OPTIONS, "--microphone", stdin=RAW, prelude=MICROPHONE)
    assert (done.returncode, done.stdout, done.stderr) == (0, lines(updates), "")
    done = spawn("listen", speaker, "--microphone", prelude=MICROPHONE)
    assert (done.returncode, done.stderr) == (2, "Error: --microphone: no input device\n")


def test_without_a_microphone(spawn: Dragoman, speaker: Path) -> None:
    done = spawn("listen", speaker, "--microphone")
    assert done.returncode == 2
    assert done.stderr == (
        "Error: this needs the package sounddevice: pip install 'dragoman[microphone]'\n"
    )


def test_what_cannot_be(dragoman: Dragoman, bundle: Path, speaker: Path) -> None:
    for arguments, problem in (
        ((bundle,), "transcribe: "),
        ((speaker, "--timestamps", "--json"), "--timestamps and --json exclude each other"),
        ((speaker, "--language", "xx"), "--language: expected one of"),
    ):
        done = dragoman("listen", *arguments)
        assert done.returncode == 2 and problem in done.stderr, done.stderr
