"""The parts of `make gpu`, the most informative first.

Each part is a module that runs in a separate process with a time limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Part:
    """A module that runs as a command.

    Attributes:
        seconds: the time limit
        module, arguments: the command, which writes JSON files into the folder of `--output`
    """

    name: str
    seconds: int
    module: str
    arguments: tuple[str, ...] = ()


def _compare(shape: str, seconds: int, batch_sizes: tuple[int, ...], *options: str) -> Part:
    sizes = [word for size in batch_sizes for word in ("--batch-size", str(size))]
    fixed = ("greedy", "--device", "cuda", "--shape", shape, "--rounds", "3", "--no-quality")
    arguments = (*fixed, *sizes, *options)
    return Part(f"speed, {shape}", seconds, "dragoman.benchmarks.compare", arguments)


DEVICE = "device"
"""The part without which there are no others."""

NO_TIME = "no time was left"
HALF = ("--only", " fp16", "--only", " float16")
BRAIN = ("--only", " bf16", "--only", " bfloat16")
SUMMARIES = ("--source-length", "260", "--longest-source", "440", "--new-tokens", "128")
"""The lengths that NVIDIA measured, see `report.published`."""

PARTS = (
    Part(DEVICE, 20, "dragoman.benchmarks.gpu.device"),
    Part("engines", 60, "dragoman.benchmarks.gpu.engines"),
    Part("parity, g2p-en", 110, "dragoman.benchmarks.gpu.parity", ("--model", "g2p-en")),
    Part("parity, verses-en", 80, "dragoman.benchmarks.gpu.parity", ("--model", "verses-en")),
    Part("parity, Whisper", 150, "dragoman.benchmarks.gpu.parity", ("--model", "whisper-tiny.en")),
    Part("second opinion", 60, "dragoman.benchmarks.gpu.second_opinion"),
    _compare("big", 120, (1, 8, 32, 128), *HALF),
    _compare("base", 100, (1, 8, 32, 128), *HALF),
    _compare("bart-large-cnn", 300, (32, 64, 128), *SUMMARIES, *BRAIN),
    Part("where the time goes", 70, "dragoman.benchmarks.gpu.time_split"),
)
"""Precisions below fp16 are left out of the speed because they take minutes to prepare. All are
measured by `python -m dragoman.benchmarks.compare greedy --device cuda --shape big`."""


def run(part: Part, directory: Path, seconds_left: float) -> tuple[dict[str, Any], str]:
    """Run a part.

    Args:
        directory: a path that does not exist yet
        seconds_left: time limit of all further parts

    Returns:
        the results by file name; and the reason why they are incomplete, or ""
    """
    directory.mkdir()
    command = [sys.executable, "-m", part.module, *part.arguments, "--output", str(directory)]
    if seconds_left < 5:
        return {}, NO_TIME
    seconds = min(seconds_left, part.seconds)
    log = directory / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=with_cuda_libraries(dict(os.environ)),
        )
        try:
            status = process.wait(timeout=seconds)
            reason = "" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            reason = f"took more than {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # child processes end with the part
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").split("\n")
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return _read_results(directory), f"{reason}: {last_line}" if reason else ""


def _read_results(directory: Path) -> dict[str, Any]:
    """Read results, skipping incomplete files of a killed part."""
    results = {}
    for file in sorted(directory.glob("*.json")):
        with contextlib.suppress(ValueError):
            results[file.stem] = json.loads(file.read_text())
    return results


VARIABLE = "LD_LIBRARY_PATH"


def with_cuda_libraries(environment: dict[str, str]) -> dict[str, str]:
    """Extend an environment so that libraries find CUDA's.

    Pip installs them in `nvidia/*/lib`, which is not on the search path of other libraries.
    """
    folders = [
        str(folder)
        for path in sys.path
        for folder in sorted(Path(path).glob("nvidia/*/lib"))
        if folder.is_dir()
    ]
    before = environment.get(VARIABLE)
    return environment | {VARIABLE: os.pathsep.join([*folders, *([before] if before else [])])}


def one_line(error: Exception) -> str:
    """Format an error's type and message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
