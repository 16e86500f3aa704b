"""The doctor names what is wrong with an installation, and what mends it.

The packages are doubles in a folder of their own, which is all that Python finds, or comes first.
"""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
import pytest

import dragoman
from dragoman.api import doctor
from dragoman.api.doctor import Examination, examine

INIT = "onnxruntime/__init__.py"
STORED = Path(__file__).parents[1] / "runtime" / "format" / "stored_bundle" / "bundle"
"""A bundle without known answers."""


@dataclass
class Site:
    """A folder of packages."""

    folder: Path

    def module(self, path: str, code: str = "") -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)

    def distribution(
        self, name: str, version: str, files: Sequence[str] = (), requires: Sequence[str] = ()
    ) -> Path:
        """What pip records of a distribution; its files are not made."""
        folder = self.folder / f"{name.replace('-', '_')}.dist-info"
        folder.mkdir(exist_ok=True)
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        extras = dict.fromkeys(r.partition("extra == ")[2].strip('"') for r in requires)
        lines += [f"Provides-Extra: {extra}" for extra in extras if extra]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", *lines, ""]))
        (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        return folder

    def package(self, name: str, version: str, code: str = "") -> None:
        """A distribution with a package of the same name."""
        self.module(f"{name}/__init__.py", code)
        self.distribution(name, version, [f"{name}/__init__.py"])


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder that Python searches before the others."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Site(site)


@pytest.fixture
def only(first: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """All that is installed."""
    others = [path for path in sys.path if "site-packages" not in path]
    monkeypatch.setattr(sys, "path", others)
    first.distribution("dragoman", dragoman.__version__)
    return first


def errors(found: Examination) -> list[tuple[str, str]]:
    return [(f.problem, f.mend) for f in found.findings if f.kind == "error"]


def notes(found: Examination) -> list[str]:
    return [finding.problem for finding in found.findings if finding.kind == "note"]


def values(found: Examination, section: str) -> dict[str, str]:
    return {fact.name: fact.value for fact in found.facts if fact.section == section}


def test_nothing_is_wrong(only: Site) -> None:
    requires = ['onnxruntime>=1.28; extra == "cpu"']
    only.distribution("dragoman", dragoman.__version__, requires=requires)
    only.package("onnxruntime", "1.31.1", "import os; print(1); os.write(1, b'{')")
    found = examine()
    assert found.findings == () and found.healthy
    machine = values(found, "Machine")
    assert machine.keys() == {"processor", "features", "cores", "memory"}
    assert machine["cores"].startswith(f"{os.cpu_count()}, usable ")


def test_versions_beside_their_ranges(only: Site) -> None:
    requires = [
        "numpy>=1.26",
        "click>=8.1",
        'onnxruntime!=1.29.0,>=1.28; extra == "cpu"',
        'torch>=2.9; extra == "export"',
        'onnx>=1.20; extra == "export"',
        'ray>=2.60; extra == "ray"',
    ]
    only.distribution("dragoman", dragoman.__version__, requires=requires)
    only.package("numpy", "1.25.0")
    only.package("onnxruntime", "1.27.0")
    only.package("torch", "2.13.0+cpu", "raise SystemExit('PyTorch must not be imported')")
    found = examine()
    assert errors(found) == [
        ("click is required, and not installed", "pip install 'click>=8.1'"),
        ("numpy 1.25.0 is outside of the stated range >=1.26", "pip install 'numpy>=1.26'"),
        (
            "onnxruntime 1.27.0 is outside of the stated range >=1.28,!=1.29.0 and may give other "
            "outputs",
            "pip install 'onnxruntime>=1.28,!=1.29.0'",
        ),
    ]
    assert not found.healthy
    extras = {"complete": "cpu", "export": "lacks onnx", "not installed": "ray"}
    assert values(found, "Extras") == extras
    packages = {package.name: package for package in found.packages}
    assert packages["torch"].as_tested and packages["torch"].extras == ("export",)
    assert packages["numpy"].extras == () and not packages["numpy"].allowed


def test_two_onnxruntimes(only: Site) -> None:
    only.package("onnxruntime", "1.31.1")
    only.distribution("onnxruntime-gpu", "1.31.0", [INIT])
    problem = "onnxruntime 1.31.1 and onnxruntime-gpu 1.31.0 are installed, and each overwrites "
    mend = "pip uninstall --yes onnxruntime onnxruntime-gpu, then pip install 'dragoman[cpu]', or "
    expected = f"{problem}files of the other", f"{mend}'dragoman[cuda]' for an NVIDIA GPU"
    assert errors(examine()) == [expected]


@pytest.mark.parametrize("left", ["onnxruntime", "onnxruntime-gpu"])
@pytest.mark.parametrize("folder_left", [False, True])
def test_two_onnxruntimes_and_one_was_removed(only: Site, left: str, folder_left: bool) -> None:
    """pip removed the shared files, and knows nothing of that."""
    only.distribution(left, "1.31.1", [INIT])
    if folder_left:
        only.module("onnxruntime/capi/libonnxruntime_providers_cuda.so")
    ((problem, mend),) = errors(examine())
    reason = "its files are missing" if folder_left else "No module named 'onnxruntime'"
    assert problem == f"onnxruntime is damaged: {reason}"
    assert mend == f"pip install --force-reinstall {left}"


def test_a_native_library_that_cannot_be_loaded(only: Site) -> None:
    only.package("onnxruntime", "1.31.1", "from . import state")
    only.module(f"onnxruntime/state{EXTENSION_SUFFIXES[0]}", "\x7fELF")
    ((problem, mend),) = errors(examine())
    assert problem.startswith("onnxruntime is damaged: ") and "state" in problem
    assert mend == "pip install --force-reinstall onnxruntime"


def test_an_import_that_ends_the_process(only: Site) -> None:
    """The libraries after it are examined all the same."""
    only.package("onnxruntime", "1.31.1", "import os; os.kill(os.getpid(), 11)")
    only.package("sentencepiece", "0.2.3", "raise ImportError('bad')")
    assert errors(examine()) == [
        (
            "onnxruntime is damaged: its import ended the process (SIGSEGV)",
            "pip install --force-reinstall onnxruntime",
        ),
        ("sentencepiece is damaged: bad", "pip install --force-reinstall sentencepiece"),
    ]


def test_a_library_that_was_built_for_numpy_1(first: Site) -> None:
    """NumPy itself says so to what reads the old place of its interface."""
    code = "from numpy.core._multiarray_umath import _ARRAY_API"
    first.package("soxr", "0.3.0", code)
    found = [error for error in errors(examine()) if error[0].startswith("soxr")]
    text = f"soxr 0.3.0 was built for NumPy 1, and NumPy {np.__version__} is installed"
    assert (text, "pip install --upgrade soxr") in found


def test_no_backend(only: Site) -> None:
    ((problem, mend),) = errors(examine())
    assert problem.startswith("no library runs bundles: expected one of openvino, ")
    assert mend == "pip install 'dragoman[cpu]'"


def cuda(site: Site, driver: int, status: str) -> None:
    site.distribution("cuda-bindings", "13.5.0")
    site.module("cuda/__init__.py")
    site.module("cuda/bindings/__init__.py")
    site.module(
        "cuda/bindings/runtime.py",
        f"""
import enum, types
cudaError_t = enum.Enum("cudaError_t", ["cudaSuccess", "cudaErrorInsufficientDriver"])
ok = cudaError_t.cudaSuccess
def cudaDriverGetVersion(): return ok, {driver}
def cudaRuntimeGetVersion(): return ok, 13050
def cudaGetDeviceCount(): return cudaError_t.{status}, 1
def cudaGetErrorString(status): return ok, b"CUDA driver version is insufficient"
def cudaGetDeviceProperties(number):
    return ok, types.SimpleNamespace(name=b"Some GPU", major=8, minor=9)
""",
    )


def test_a_driver_that_is_too_old_for_the_bindings(first: Site) -> None:
    cuda(first, 12040, "cudaErrorInsufficientDriver")
    problem = (
        "the NVIDIA driver is too old: expected one for CUDA 13.5, found one for CUDA 12.4; "
        "update the driver, or install packages for CUDA 12"
    )
    assert problem in [text for text, _ in errors(examine())]


def test_bindings_that_raise_without_a_driver(first: Site) -> None:
    """As cuda-bindings 12.8 does, which is below the lowest version."""
    cuda(first, 0, "cudaSuccess")
    raises = "def cudaDriverGetVersion(): raise RuntimeError('Failed to dlopen libcuda.so.1')\n"
    first.module("cuda/bindings/runtime.py", raises)
    assert values(examine(), "GPU")["NVIDIA"] == (
        "found no NVIDIA GPU: cuda-bindings cannot load the NVIDIA driver (Failed to dlopen "
        "libcuda.so.1)"
    )


def test_a_driver_that_is_too_old_for_a_package(first: Site) -> None:
    cuda(first, 12040, "cudaSuccess")
    first.distribution("onnxruntime-gpu", "1.31.1")
    first.module("onnxruntime/capi/build_and_package_info.py", "cuda_version = '13.0'\n")
    found = examine()
    text = "Some GPU, compute capability 8.9, driver for CUDA up to 12.4"
    assert values(found, "GPU")["NVIDIA"] == text
    problem = "the NVIDIA driver is too old: it is for CUDA up to 12.4, and onnxruntime-gpu 1.31.1"
    assert (f"{problem} needs CUDA 13.0", "update the NVIDIA driver") in errors(found)


def test_libraries_of_cuda_that_onnxruntime_does_not_find(first: Site) -> None:
    cuda(first, 13050, "cudaSuccess")
    first.distribution("onnxruntime-gpu", "1.31.1")
    code = """
SessionOptions = object
def preload_dlls():
    print("Failed to load libcublas.so.13: libcublas.so.13: cannot open shared object file")
    print("Failed to load libcurand.so.10: libcurand.so.10: cannot open shared object file")
"""
    first.package("onnxruntime", "1.31.1", code)
    problem = "onnxruntime-gpu finds no usable libcublas.so.13, libcurand.so.10"
    assert (problem, "pip install 'dragoman[cuda]'") in errors(examine())


def test_torch_with_cuda_without_a_gpu_is_a_note(sound: Site) -> None:
    sound.distribution("torch", "2.13.0", requires=["nvidia-cudnn-cu13==9"])
    found = examine()
    assert any(note.startswith("PyTorch brings CUDA's libraries") for note in notes(found))
    assert found.healthy


@pytest.fixture
def sound(only: Site) -> Site:
    """All that is installed, and nothing is wrong with it."""
    only.package("onnxruntime", "1.31.1")
    return only


def test_no_home(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_entry)
    monkeypatch.delenv("XDG_CACHE_HOME")
    ((problem, mend),) = errors(examine())
    assert problem == "the user has no home directory: set HOME or XDG_CACHE_HOME"
    assert mend.startswith("export XDG_CACHE_HOME=")


def test_a_cache_that_is_not_writable(
    sound: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    ((problem, mend),) = errors(examine())
    cache = tmp_path / "file" / "dragoman"
    assert problem == f"the cache {cache} is not writable: Not a directory"
    assert mend.startswith("export XDG_CACHE_HOME=")


def test_an_encoding_that_is_not_utf_8(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getencoding", lambda: "ISO-8859-1")
    ((problem, mend),) = errors(examine())
    assert problem.endswith("found locale ISO-8859-1")
    assert mend == "export PYTHONUTF8=1"


def test_an_editable_installation_of_another_folder_is_a_note(sound: Site) -> None:
    own = sound.distribution("dragoman", "0.0.9")
    url = '{"dir_info": {"editable": true}, "url": "file:///opt/other"}'
    (own / "direct_url.json").write_text(url)
    found = examine()
    here = Path(dragoman.__file__).parent
    assert notes(found) == [
        f"the editable installation is of /opt/other, and {here} is imported",
        f"version 0.0.9 is installed, and {dragoman.__version__} is imported: the ranges are those "
        "of the former",
    ]
    assert found.healthy


def test_a_probe_that_fails_is_a_finding(sound: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> object:
        raise ValueError("nothing\nthere")

    for name in ("processor", "user_cache", "distributions_of", "subprocess"):
        monkeypatch.setattr(doctor, name, fail)
    found = examine()
    problems = {text for text, _ in errors(found)}
    for name in ("machine", "user", "ONNX Runtime"):
        assert f"{name}: this could not be examined: ValueError: nothing there" in problems
    assert any(text.startswith("libraries: this could not be examined: ") for text in problems)
    assert values(found, "Versions").keys() == {"Dragoman", "Python", "platform"}


def test_bundles(first: Site, tmp_path: Path) -> None:
    damaged = shutil.copytree(STORED, tmp_path / "damaged")
    with (damaged / "decoder.onnx").open("ab") as file:
        file.write(b"0")
    nothing = str(tmp_path / "nothing")
    found = examine([STORED, str(damaged), nothing])
    text = "fp32 for cpu, all files intact, can be loaded, has no known answers"
    assert values(found, "Bundles") == {str(STORED): text}
    (problem,) = (text for text, _ in errors(found) if str(damaged) in text)
    assert "decoder.onnx" in problem
    missing = (f"{nothing} does not exist", "name the directory of a bundle")
    assert missing in errors(found)


@pytest.mark.parametrize(
    ("answers", "text", "problem"),
    [
        ([""], ", can be loaded, its known answers pass", None),
        (["onnxruntime gives other tokens"], "", "onnxruntime gives other tokens"),
        ([], "", f"{STORED}: loading ended the process (SIGBUS)"),
    ],
)
def test_known_answers(
    sound: Site,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[object],
    text: str,
    problem: str | None,
) -> None:
    def child(code: str, *arguments: str) -> tuple[list[object], str]:
        of_bundle = arguments == (str(STORED),)
        return (answers, "SIGBUS") if of_bundle else ([["onnxruntime", ""]], "")

    monkeypatch.setattr(doctor, "_child", child)
    monkeypatch.setattr(doctor, "record_of", lambda manifest: "known_answers.json")
    found = examine([STORED])
    expected = f"fp32 for cpu, all files intact{text}"
    assert values(found, "Bundles") == {str(STORED): expected}
    assert [text for text, _ in errors(found)] == [problem] * (problem is not None)
