"""The circumstances in every record of a measurement: machine, versions, date and command."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from .machine import machine

PACKAGES = (
    "dragoman",
    "ctranslate2",
    "faster-whisper",
    "numpy",
    "cuda-bindings",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt_rtx",
    "optimum",
    "optimum-onnx",
    "torch",
    "transformers",
)


@dataclass(frozen=True)
class Circumstances:
    """Where, with what, when and how something was measured.

    Attributes:
        machine: processor, and GPU where one takes part
        load_average: of the machine over the minute before the measurement: what else ran on it
        versions: of the installed packages that take part
        date: ISO 8601, UTC
        command: what to run to repeat the measurement
    """

    machine: str
    load_average: float
    versions: dict[str, str]
    date: str
    command: str


def circumstances(module: str, load_average: float, *, gpu: str | None = None) -> Circumstances:
    """Of a measurement that this process has just made.

    Args:
        module: run as a command; its arguments are taken from `sys.argv`
        gpu: a description of the GPU, if the measurement is about one
    """
    return Circumstances(
        machine="; ".join([*([gpu] if gpu else []), machine()]),
        load_average=load_average,
        versions=installed_versions(),
        date=today(),
        command=command_line(module),
    )


def command_line(module: str) -> str:
    """The command that runs this process, as a shell takes it."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def today() -> str:
    """ISO 8601, UTC."""
    return datetime.now(UTC).date().isoformat()


def installed_versions() -> dict[str, str]:
    """Of those of `PACKAGES` that are installed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
