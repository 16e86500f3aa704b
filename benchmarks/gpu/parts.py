"""The parts of `make gpu`, the most informative first.

Each part is a module that runs in a separate process with a time limit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..compare.options import option
from ..compare.record import write_json


@dataclass(frozen=True)
class Part:
    """A module that runs as a command."""

    name: str
    seconds: int
    module: str
    arguments: tuple[str, ...] = ()
    """The command, which writes JSON files into the folder of `--output`."""
    needs: tuple[str, ...] = ()
    """Modules without which the part is left out."""


DEVICE = "device"
"""The part without which there are no others."""

LIBRARIES = "LD_LIBRARY_PATH"
NO_TIME = "no time was left"
SECONDS_TO_WRITE = 10
MESSAGES = "messages.log"
"""What the library logs, such as why steps are not captured as CUDA graphs."""
COLOURS = re.compile("\x1b\\[[0-9;]*m")
EXPORT = ("torch", "onnx", "onnxscript", "onnxruntime")
"""What the parts that export a model need."""
HALF = ("CUDA fp16", "RTX fp16", "PyTorch fp16", "transformers fp16", " float16")
BRAIN = ("CUDA bf16", "RTX bf16", "PyTorch bf16", "transformers bf16", " bfloat16")
"""Contenders without compiled steps, whose compilation takes longer than all others together."""
COMPILED = ("compiled fp16", "Dragoman CUDA fp16", "Dragoman RTX fp16")
SUMMARIES = ("--source-length", "260", "--longest-source", "440", "--new-tokens", "128")
"""The lengths that NVIDIA measured, see `report.BART_LARGE_CNN`."""


def parts_on(device: str) -> tuple[Part, ...]:
    """Return the parts that run on a device, the most informative first.

    On the device "cpu", the parts run on the smallest models, to test the parts.
    """
    small = device == "cpu"

    def own(name: str, seconds: int, module: str, *arguments: str, **more: Any) -> Part:
        command = f"dragoman.benchmarks.gpu.{module}", (*arguments, "--device", device)
        needs = (*EXPORT, *more.get("needs", ()))
        return Part(name, seconds * (3 if small else 1), *command, needs)

    def speed(name: str, seconds: int, shape: str, **repeated: tuple[Any, ...]) -> Part:
        more = SUMMARIES if shape == "bart-large-cnn" and not small else ()
        if small:
            shape, more = "tiny", ("--vocab-size", "200", "--new-tokens", "8", "--threads", "1")
            repeated |= {"only": ("Dragoman fp32",), "batch_size": repeated["batch_size"][:2]}
        arguments = ["greedy", "--device", device, "--shape", shape, "--no-quality", *more]
        arguments += ["--rounds", "1" if small else "3"]
        for option_name, values in repeated.items():
            for value in values:
                arguments += [f"--{option_name.replace('_', '-')}", str(value)]
        module = "dragoman.benchmarks.compare"
        return Part(f"speed, {name}", seconds, module, tuple(arguments), EXPORT)

    sizes = (1, 8, 32, 128)
    rtx: dict[str, Any] = {"needs": ("tensorrt_rtx", "cuda")}
    engines = (
        own("parity of TensorRT-RTX", 85, "parity", "--backend", "tensorrt-rtx", **rtx),
        own("requests on TensorRT-RTX", 60, "behaviour", "requests", "--engines", **rtx),
        own("starts of TensorRT-RTX", 45, "behaviour", "starts", "--engines", **rtx),
        own("parity of TensorRT", 90, "parity", "--backend", "tensorrt", needs=("tensorrt",)),
    )
    return (
        Part(DEVICE, 30, "dragoman.benchmarks.gpu.device", ("--device", device)),
        own("parity of ONNX Runtime", 90, "parity"),
        own("two threads", 45, "behaviour", "threads"),
        own("serve", 60, "behaviour", "serve", needs=("starlette", "uvicorn")),
        own("beams, streams, cancellation", 40, "behaviour", "requests"),
        own("Whisper", 120, "parity", "--model", "whisper-tiny.en"),
        own("encoders", 30, "behaviour", "encoders"),
        own("engines", 60, "engines", **rtx),
        *(() if small else engines),
        speed("big", 240, "big", only=HALF, batch_size=sizes),
        speed("base", 210, "base", only=HALF, batch_size=sizes),
        own("kernels of a step", 60, "behaviour", "kernels"),
        own("two hundred sizes", 60, "behaviour", "sizes"),
        own("starts", 45, "behaviour", "starts"),
        own("decoder-only model", 80, "parity", "--model", "verses-en"),
        own("recurrent decoder", 45, "parity", "--model", "bible-en-es-student"),
        speed("compiled decoding", 130, "base", only=COMPILED, batch_size=(1, 32)),
        speed("bart-large-cnn", 175, "bart-large-cnn", only=BRAIN, batch_size=(32, 64, 128)),
    )


def run(part: Part, directory: Path, seconds_left: float) -> tuple[dict[str, Any], str]:
    """Run a part, which writes into a new directory.

    The results by file name are returned, and the reason why they are incomplete, or "".
    """
    directory.mkdir()
    command = [sys.executable, "-m", part.module, *part.arguments, "--output", str(directory)]
    if absent := next((name for name in part.needs if importlib.util.find_spec(name) is None), ""):
        return {}, f"left out: {absent} is not installed"
    if seconds_left < 5:
        return {}, NO_TIME
    seconds = min(seconds_left, part.seconds)
    # Pip installs CUDA's libraries where other libraries do not search.
    folders = (folder for path in sys.path for folder in sorted(Path(path).glob("nvidia/*/lib")))
    places = [str(folder) for folder in folders if folder.is_dir()]
    places += filter(None, [os.environ.get(LIBRARIES)])
    log = directory / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {LIBRARIES: os.pathsep.join(places)},
        )
        try:
            status = process.wait(timeout=seconds)
            reason = f"exit status {status}: {_last_line(log)}" if status else ""
        except subprocess.TimeoutExpired:
            reason = f"took more than {seconds:.0f} s: {_last_line(log)}"
            process.send_signal(signal.SIGINT)  # a comparison writes what it has measured
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=SECONDS_TO_WRITE)
        finally:
            with contextlib.suppress(ProcessLookupError):  # child processes end with the part
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    results: dict[str, Any] = {}
    for written in sorted(directory.glob("*.json")):
        with contextlib.suppress(ValueError):  # an incomplete file of a killed part
            results[written.stem] = json.loads(written.read_text())
    if (messages := directory / MESSAGES).exists():
        lines = dict.fromkeys(messages.read_text(errors="replace").splitlines())
        results |= {"messages": [{"message": line} for line in lines]} if lines else {}
    return results, reason


def _last_line(log: Path) -> str:
    return COLOURS.sub("", log.read_text(errors="replace")).strip().rpartition("\n")[2].strip()


def command(
    file: str, measure: Callable[..., Iterator[Any]], *options: click.Parameter
) -> click.Command:
    """Return the command of a part, which writes its results after every measurement.

    A faulty engine may end the process. The measurement yields the results so far, given an empty
    folder, the device and the options; these may also stand in braces in the file's name.
    """

    def run(output: Path, **values: Any) -> None:
        log, kept = logging.getLogger("dragoman"), logging.FileHandler(output / MESSAGES)
        log.addHandler(kept)
        log.setLevel(logging.INFO)
        try:
            with tempfile.TemporaryDirectory() as workspace:
                for results in measure(Path(workspace), **values):
                    write_json(results, output / f"{file.format_map(values)}.json")
        finally:
            log.removeHandler(kept)
            kept.close()

    folder = option("--output", "Folder to write the results to.", kind=Path, required=True)
    device = option("--device", "The device.", "cuda", ["cpu", "cuda"])
    parameters = [folder, device, *options]
    return click.Command("part", params=parameters, callback=run, help=measure.__doc__)
