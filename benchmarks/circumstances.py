"""The circumstances in every record of a measurement: machine, versions, date and command."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .harness import Interpreter, call_in
from .machine import machine

PACKAGES = (
    "dragoman",
    "ctranslate2",
    "fastembed",
    "faster-whisper",
    "numpy",
    "cuda-bindings",
    "onnxruntime",
    "nncf",
    "onnxruntime-genai",
    "onnxruntime-gpu",
    "openvino",
    "openvino-genai",
    "tensorrt",
    "tensorrt_rtx",
    "optimum",
    "optimum-intel",
    "optimum-onnx",
    "sentence-transformers",
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


def circumstances(
    module: str,
    load_average: float,
    *,
    gpu: str | None = None,
    environments: Iterable[Interpreter] = (),
    trees: Mapping[str, Path] | None = None,
) -> Circumstances:
    """Of a measurement that this process has just made.

    Args:
        module: run as a command; its arguments are taken from `sys.argv`
        gpu: a description of the GPU, if the measurement is about one
        environments: others that took part; packages that are not installed here are named, too
        trees: other source trees that took part, by the name that they have among the versions

    Raises:
        DragomanError: an environment cannot be asked.
    """
    versions = installed_versions()
    for environment in environments:
        versions = call_in(environment, installed_versions) | versions
    for name, tree in (trees or {}).items():
        versions[name] = commit_of(tree)
    return Circumstances(
        machine="; ".join([*([gpu] if gpu else []), machine()]),
        load_average=load_average,
        versions=versions,
        date=today(),
        command=command_line(module),
    )


def commit_of(tree: Path) -> str:
    """The commit that a source tree is at, and whether files were changed since."""
    described = subprocess.run(
        [
            *(shutil.which("git") or "git", "-C", str(tree)),
            *("describe", "--always", "--dirty", "--exclude", "*"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown commit"


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
