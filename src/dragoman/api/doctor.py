"""Examines an installation of Dragoman and its machine, as `dragoman doctor` shows it.

A probe that fails is a finding itself. What may end the process, such as a damaged native library,
is imported in a child process.
"""

from __future__ import annotations

import json
import locale
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

import dragoman
from dragoman.errors import DragomanError, distributions_of, import_problem, shortened
from dragoman.files.regular_files import NO_HOME, user_cache
from dragoman.runtime.backends.machine import cgroup_limits, memory
from dragoman.runtime.backends.processor import processor
from dragoman.runtime.backends.table import BACKENDS
from dragoman.runtime.backends.tensorrt.packages import MODULES as ENGINES
from dragoman.runtime.backends.tensorrt.packages import cuda_version
from dragoman.runtime.format.bundle import read_bundle
from dragoman.runtime.format.known_answers import record_of
from dragoman.runtime.serving.arrangement import usable_cores
from dragoman.tested_versions import Package, installed_version, normalized, required_packages

NAME = "dragoman"
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt-rtx", "tensorrt")
"""Distributions of the backends; one of them is needed."""

NATIVE = {
    "numpy": "",
    "tokenizers": "",
    "onnxruntime": "cpu",
    "openvino": "openvino",
    "sentencepiece": "sentencepiece",
    "soxr": "audio",
    "av": "audio",
    "ml_dtypes": "export",
}
"""Packages with native libraries that are imported to see whether they work, with their extras.

PyTorch is not among them, since its import takes seconds."""

SECONDS = 60
"""The longest time that a child process may take."""


@dataclass(frozen=True)
class Fact:
    """A line of the examination."""

    section: str
    name: str
    value: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or worth knowing."""

    kind: Literal["error", "note"]
    """Either "error": something does not work as it should; or "note": nothing needs to be done."""
    problem: str
    mend: str = ""
    """The command that mends it, or what to do; empty if there is nothing to do."""


@dataclass(frozen=True)
class Examination:
    """What `examine` found."""

    facts: tuple[Fact, ...]
    packages: tuple[Package, ...]
    """The distributions that Dragoman requires."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def healthy(self) -> bool:
        """Whether there are no errors."""
        return all(finding.kind != "error" for finding in self.findings)


Found = Iterator[Fact | Finding]


def examine(bundles: Sequence[str | Path] = ()) -> Examination:
    """Examine this installation, the machine, and bundles.

    Bundles are compared with their manifests. Nothing is raised.
    """
    packages: list[Package] = []
    probes: list[tuple[str, Callable[[], Found]]] = [
        ("versions", partial(_versions, packages)),
        ("machine", _machine),
        ("ONNX Runtime", _onnxruntimes),
        ("libraries", _libraries),
        ("GPU", _gpu),
        ("user", _user),
        *((f"bundle {directory}", partial(_bundle, Path(directory))) for directory in bundles),
    ]
    with ThreadPoolExecutor() as threads:  # they wait for child processes
        results = list(threads.map(_run, probes))
    found = [item for result in results for item in result]
    findings = [item for item in found if isinstance(item, Finding)]
    return Examination(
        tuple(item for item in found if isinstance(item, Fact)),
        tuple(packages),
        tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.kind)),
    )


def _run(probe: tuple[str, Callable[[], Found]]) -> list[Fact | Finding]:
    name, run = probe
    found: list[Fact | Finding] = []
    try:
        found.extend(run())
    except Exception as error:  # whatever it is, the other probes shall run
        problem = f"{name}: this could not be examined: {type(error).__name__}: {error}"
        found.append(Finding("error", shortened(" ".join(problem.split()))))
    return found


def _versions(packages: list[Package]) -> Found:
    here = Path(dragoman.__file__).parent
    yield Fact("Versions", "Dragoman", f"{dragoman.__version__}, {here}")
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    yield Fact("Versions", "Python", python)
    yield Fact("Versions", "platform", platform.platform())
    try:
        own = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        yield Finding(
            "note", f"{NAME} is not installed, only imported: what it requires is unknown"
        )
        return
    yield from _source(own, here)
    stated = own.metadata["Requires-Python"]
    if stated and not SpecifierSet(stated).contains(platform.python_version(), prereleases=True):
        problem = f"Python {platform.python_version()} is outside of the stated range {stated}"
        yield Finding("error", problem, "install Dragoman with another Python")
    packages.extend(required_packages(own))
    for package in packages:
        problem = f"{package.name} {package.installed} is outside of the stated range"
        install = f"pip install '{package.name}{package.versions}'"
        if package.installed is None and not package.extras:
            yield Finding("error", f"{package.name} is required, and not installed", install)
        elif package.installed is not None and not package.allowed:
            wrong = " and may give other outputs" if package.name in RUNTIMES else ""
            yield Finding("error", f"{problem} {package.versions}{wrong}", install)
    yield from _extras(packages)


def _source(own: metadata.Distribution, here: Path) -> Found:
    url = json.loads(own.read_text("direct_url.json") or "{}")
    folder = str(url.get("url", "")).removeprefix("file://")
    if url.get("dir_info", {}).get("editable") and not here.is_relative_to(folder):
        problem = f"the editable installation is of {folder}, and {here} is imported"
        yield Finding("note", problem)
    if own.version != dragoman.__version__:
        problem = f"version {own.version} is installed, and {dragoman.__version__} is imported"
        yield Finding("note", f"{problem}: the ranges are those of the former")


def _extras(packages: Sequence[Package]) -> Found:
    complete, incomplete, absent = [], [], []
    for extra in sorted({extra for package in packages for extra in package.extras}):
        own = [package for package in packages if extra in package.extras]
        lacks = [package.name for package in own if package.installed is None]
        if not lacks:
            complete.append(extra)
        elif len(lacks) == len(own):
            absent.append(extra)
        else:
            incomplete.append(Fact("Extras", extra, f"lacks {', '.join(lacks)}"))
    yield Fact("Extras", "complete", ", ".join(complete) or "none")
    yield from incomplete
    yield Fact("Extras", "not installed", ", ".join(absent) or "none")


def _machine() -> Found:
    name, features = processor()
    yield Fact("Machine", "processor", f"{name} ({platform.machine()})")
    yield Fact("Machine", "features", " ".join(features) or "unknown")
    usable, (quota, limit) = usable_cores(), cgroup_limits()
    cores = f"{os.cpu_count()}, usable {usable}"
    yield Fact("Machine", "cores", cores + (f", a cgroup allows {quota:g}" if quota else ""))
    if quota and quota < usable:
        problem = f"a cgroup allows {quota:g} of {usable} cores, which the defaults do not know"
        yield Finding("note", problem, f"--threads {max(1, int(quota))}")
    total, available = memory()
    sizes = f"{total / 1e9:.1f} GB, available {available / 1e9:.1f} GB"
    allowed = f", a cgroup allows {limit / 1e9:.1f} GB" if limit else ""
    yield Fact("Machine", "memory", sizes + allowed)


def _onnxruntimes() -> Found:
    found = [name for name in distributions_of("onnxruntime") if installed_version(name)]
    if len(found) > 1:
        named = " and ".join(f"{name} {installed_version(name)}" for name in found)
        yield Finding(
            "error",
            f"{named} are installed, and each overwrites files of the other",
            f"pip uninstall --yes {' '.join(found)}, then pip install 'dragoman[cpu]', or "
            "'dragoman[cuda]' for an NVIDIA GPU",
        )
    if not found and not any(map(installed_version, RUNTIMES)):
        names = ", ".join(dict.fromkeys(record.library for record in BACKENDS))
        problem = f"no library runs bundles: expected one of {names}, found none"
        yield Finding("error", problem, "pip install 'dragoman[cpu]'")


IMPORTS = """
import contextlib, importlib, io
sys.modules["openvino_telemetry"] = None  # or OpenVINO reports that it is imported
for name in sys.argv[1:]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            module = importlib.import_module(name)
        missing = getattr(module, "__file__", None) is None
        problem = "its files are missing" if missing else ""
    except BaseException as error:
        problem = " ".join(str(error).split()) or type(error).__name__
    if "compiled using NumPy 1" in said.getvalue():
        problem = "it was built for NumPy 1"
    answer([name, problem])
"""


def _libraries() -> Found:
    names = [name for name in NATIVE if installed_version(name) or PathFinder.find_spec(name)]
    if "onnxruntime" not in names and distributions_of("onnxruntime"):
        names.append("onnxruntime")  # of onnxruntime-gpu, say
    while names:
        answers, died = _child(IMPORTS, *names)
        for name, problem in answers:
            names.remove(name)
            if problem:
                yield _unusable(name, problem)
        if died and names:  # at the first library without an answer
            yield _unusable(names.pop(0), f"its import ended the process ({died})")
        elif names and not answers:
            raise RuntimeError(f"the child process said nothing about {', '.join(names)}")


def _unusable(name: str, problem: str) -> Finding:
    requirement = f"dragoman[{NATIVE[name]}]" if NATIVE[name] else name
    if "built for NumPy 1" in problem:
        distribution = next(iter(distributions_of(name)), name)
        problem = f"{name} {installed_version(distribution)} was built for NumPy 1"
        found = f"{problem}, and NumPy {installed_version('numpy')} is installed"
        return Finding("error", found, f"pip install --upgrade {distribution}")
    install = f"pip install --force-reinstall {name}"
    damage = import_problem(name, requirement, ImportError(problem, name=name))
    return Finding("error", *(damage or (f"{name} is damaged: {problem}", install)))


CHILD = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print
sys.path[:] = json.loads(sys.argv.pop(1))
def answer(value):
    print(json.dumps(value), file=answers, flush=True)
"""


def _child(code: str, *arguments: str) -> tuple[list[Any], str]:
    command = [sys.executable, "-c", CHILD + code, json.dumps(sys.path), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and code of ours)
            command, capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        output, died = error.stdout or b"", f"after {SECONDS} s"
    else:
        output, status = done.stdout, done.returncode
        died = signal.Signals(-status).name if status < 0 else f"status {status}" if status else ""
    return [json.loads(line) for line in output.splitlines()], died


GPU = """
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt.packages import find_package
found = {"problems": []}
try:
    found |= find_gpu()._asdict()
except BackendError as error:
    found["no_gpu"] = str(error)
for target in [name for name in sys.argv[1:] if name != "onnxruntime-gpu"]:
    try:
        find_package(target)
    except BackendError as error:
        found["problems"].append(str(error))
if "onnxruntime-gpu" in sys.argv and "no_gpu" not in found:
    from dragoman.runtime.backends.onnxruntime.cuda import load_libraries
    if missing := load_libraries():
        problem = f"onnxruntime-gpu finds no usable {', '.join(missing)}"
        found["problems"].append(f"{problem}: pip install 'dragoman[cuda]'")
answer(found)
"""


def _gpu() -> Found:
    built = dict(_cuda_packages())
    if built:
        named = (f"{name} (CUDA {cuda})" for name, cuda in built.items())
        yield Fact("GPU", "packages", ", ".join(named))
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        yield Fact("GPU", "driver", driver.read_text().splitlines()[0].partition(":")[2].strip())
    answer: dict[str, Any] = {"no_gpu": "not examined, since cuda-bindings is not installed"}
    if any(map(installed_version, ("cuda-bindings", *ENGINES))):
        answers, died = _child(GPU, *filter(installed_version, ("onnxruntime-gpu", *ENGINES)))
        answer = answers[0] if answers else {"no_gpu": f"CUDA failed: {died}"}
    for problem in answer.get("problems", ()):
        problem, command, package = problem.partition("pip install")
        yield Finding("error", problem.removesuffix(": "), command + package)
    reason = answer.get("no_gpu")
    if reason is None:
        capability, supported = answer["compute_capability"], answer["cuda"]
        text = (
            f"{answer['name']}, compute capability {capability}, driver for CUDA up to {supported}"
        )
        yield Fact("GPU", "NVIDIA", text)
        for package, cuda in built.items():
            needed, most = cuda.partition(".")[0], supported.partition(".")[0]
            if needed.isdecimal() and int(needed) > int(most):
                problem = f"the NVIDIA driver is too old: it is for CUDA up to {supported}, and "
                problem += f"{package} needs CUDA {cuda}"
                yield Finding("error", problem, "update the NVIDIA driver")
        return
    yield Fact("GPU", "NVIDIA", reason)
    if "too old" in reason:
        yield Finding("error", reason, "update the NVIDIA driver")
    elif driver.exists() and installed_version("cuda-bindings"):
        yield Finding("error", reason, "nvidia-smi, which shows the driver and its GPUs")
    elif not driver.exists() and _torch_has_cuda():
        yield Finding(
            "note",
            "PyTorch brings CUDA's libraries, and there is no NVIDIA GPU: its build for processors "
            "is smaller and does the same here",
        )


def _cuda_packages() -> Iterator[tuple[str, str]]:
    for name, module in ENGINES.items():
        if version := installed_version(name):
            yield f"{name} {version}", cuda_version(module)
    if version := installed_version("onnxruntime-gpu"):
        own = metadata.distribution("onnxruntime-gpu")
        file = Path(str(own.locate_file("onnxruntime/capi/build_and_package_info.py")))
        text = file.read_text() if file.exists() else ""
        stated = re.search(r"cuda_version = '([\d.]+)'", text)
        yield f"onnxruntime-gpu {version}", stated[1] if stated else "unknown"


def _torch_has_cuda() -> bool:
    required = metadata.requires("torch") or [] if installed_version("torch") else []
    return any(line.startswith(("nvidia-", "cuda-")) for line in required)


def _user() -> Found:
    cache = user_cache()
    yield Fact("User", "cache", str(cache or "none"))
    if cache is None:
        yield Finding("error", NO_HOME, "export XDG_CACHE_HOME=/tmp/cache")
    else:
        try:
            folder = next(path for path in (cache, *cache.parents) if path.exists())
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            problem = f"the cache {cache} is not writable: {error.strerror}"
            yield Finding("error", problem, "export XDG_CACHE_HOME=/tmp/cache")
    encodings = {
        "locale": locale.getencoding(),
        "standard output": getattr(sys.stdout, "encoding", None) or "utf-8",
        "file names": sys.getfilesystemencoding(),
    }
    if sys.flags.utf8_mode:
        del encodings["locale"]
    yield Fact("User", "encoding", ", ".join(dict.fromkeys(map(normalized, encodings.values()))))
    others = [f"{of} {name}" for of, name in encodings.items() if normalized(name) != "utf-8"]
    if others:
        problem = f"expected UTF-8, as texts and names of files have, found {', '.join(others)}"
        yield Finding("error", problem, "export PYTHONUTF8=1")


BUNDLE = """
from dragoman.errors import DragomanError
from dragoman.runtime import load
try:
    load(sys.argv[1], check="always")
except DragomanError as error:
    answer(str(error))
else:
    answer("")
"""


def _bundle(directory: Path) -> Found:
    if not directory.exists():
        yield Finding("error", f"{directory} does not exist", "name the directory of a bundle")
        return
    try:
        manifest = read_bundle(directory).manifest
    except DragomanError as error:
        yield Finding("error", str(error), "copy the bundle again, or build it again")
        return
    answers, died = _child(BUNDLE, str(directory))
    problem = answers[0] if answers else f"{directory}: loading ended the process ({died})"
    text = f"{manifest.precision} for {manifest.target}, all files intact"
    known = "has no known answers" if record_of(manifest) is None else "its known answers pass"
    yield Fact("Bundles", str(directory), text if problem else f"{text}, can be loaded, {known}")
    if problem:
        yield Finding("error", problem)
