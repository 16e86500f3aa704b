"""What is not installed is named with the extra that brings it; the rest works without."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dragoman.cli.main import EXTRAS, requirement_of
from dragoman.tested_versions import normalized

Outcome = CompletedProcess[str]
Spawn = Callable[..., Outcome]


def hiding(*packages: str) -> str:
    return f"""
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


WITHOUT_EXPORT = hiding("torch", "onnx", "onnx_ir", "onnxscript", "safetensors", "rapidfuzz")


def error_of(outcome: Outcome) -> str:
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


def test_run_needs_no_torch(spawn: Spawn, bundle: Path) -> None:
    outcome = spawn("run", bundle, "need", prelude=WITHOUT_EXPORT)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.strip()
    assert outcome.stdout == spawn("run", bundle, "need").stdout


def test_inspect_and_bench_need_no_torch(spawn: Spawn, bundle: Path) -> None:
    arguments = ("--batch-size", 1, "--runs", 1, "--new-tokens", 2, "--source-length", 3)
    assert spawn("inspect", bundle, prelude=WITHOUT_EXPORT).returncode == 0
    assert spawn("bench", bundle, *arguments, prelude=WITHOUT_EXPORT).returncode == 0


def test_inspect_needs_no_backend(spawn: Spawn, bundle: Path) -> None:
    assert spawn("inspect", bundle, prelude=hiding("onnxruntime")).returncode == 0


def test_build_says_how_to_install_torch(spawn: Spawn, checkpoint: Path, tmp_path: Path) -> None:
    for command in ("build", "export"):
        outcome = spawn(command, checkpoint, "-o", tmp_path / "out", prelude=hiding("torch"))
        message = error_of(outcome)
        assert "torch" in message and "pip install 'dragoman[export]'" in message
    assert list(tmp_path.iterdir()) == []


def test_train_says_how_to_install_torch(spawn: Spawn, tmp_path: Path) -> None:
    message = error_of(spawn("train", "g2p-en", "-o", tmp_path / "out", prelude=hiding("torch")))
    assert message == "Error: this needs the package torch: pip install 'dragoman[train]'"


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("train", "safetensors", "train"),
        ("train", "matplotlib", "train"),
        ("build", "safetensors", "export"),
        ("build", "rapidfuzz", "export"),
        ("build", "sacrebleu", "metrics"),
        ("attention", "matplotlib", "pictures"),
        ("report", "matplotlib", "report"),
        ("report", "sacrebleu", "metrics"),
        ("serve", "starlette", "serve"),
        ("run-file", "starlette", "ray"),
    ],
)
def test_the_extra_is_that_of_the_command(
    monkeypatch: pytest.MonkeyPatch, command: str, package: str, extra: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["dragoman", "-v", command, "train"])
    assert requirement_of(package) == f"dragoman[{extra}]"


def test_extras_are_those_of_the_package() -> None:
    """Each extra that an error names requires the package that was missing."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {"OpenSSL": "pyopenssl", "cryptography": "pyopenssl", "markupsafe": "jinja2"}
    names |= {"yaml": "pyyaml"}
    for package, extras in EXTRAS.items():
        name = names.get(package, package)
        lists = [project["optional-dependencies"][extra] for extra in extras]
        for requirements in lists or [project["dependencies"]]:
            required = {normalized(re.split(r"[\[>=<]", line)[0]) for line in requirements}
            assert normalized(name) in required, (package, extras)


DAMAGED = "import sys, types; sys.modules['onnxruntime'] = types.ModuleType('onnxruntime')\n"
"""What Python makes of the empty folder that is left where onnxruntime and onnxruntime-gpu were
installed and one of them was removed."""


def test_a_damaged_onnxruntime_is_one_line(
    spawn: Spawn, bundle: Path, checkpoint: Path, tmp_path: Path
) -> None:
    for command in (
        ("run", bundle, "need"),
        ("serve", bundle, "--port", 0),
        ("build", checkpoint, "-o", tmp_path / "out"),
    ):
        message = error_of(spawn(*command, prelude=DAMAGED))
        assert message.startswith("Error: onnxruntime is damaged: cannot import name ")
        assert message.endswith(": pip install --force-reinstall onnxruntime")
    assert list(tmp_path.iterdir()) == []


def test_a_native_library_that_cannot_be_loaded_is_one_line(spawn: Spawn, bundle: Path) -> None:
    prelude = """
class Unloadable:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("onnxruntime_pybind11_state"):
            raise ImportError("libonnx.so.1: file too short", name=name)
sys.meta_path.insert(0, Unloadable())
"""
    message = error_of(spawn("run", bundle, "need", prelude=prelude))
    expected = "onnxruntime is damaged: libonnx.so.1: file too short: pip install --force-reinstall"
    assert message == f"Error: {expected} onnxruntime"


def test_run_says_how_to_install_onnxruntime(spawn: Spawn, bundle: Path) -> None:
    message = error_of(spawn("run", bundle, "need", prelude=hiding("onnxruntime")))
    assert "onnxruntime" in message and "pip install 'dragoman[cpu]'" in message


def test_report_needs_no_torch(spawn: Spawn, bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    outcome = spawn("report", bundle, "-o", output, "--no-measurements", prelude=WITHOUT_EXPORT)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert output.exists()


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_report_says_how_to_install_its_libraries(
    spawn: Spawn, bundle: Path, tmp_path: Path, package: str
) -> None:
    """Before anything is measured."""
    outcome = spawn("report", bundle, "-o", tmp_path / "r.html", prelude=hiding(package))
    message = error_of(outcome)
    assert package in message and "pip install 'dragoman[report]'" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["model_signing", "OpenSSL"])
def test_signatures_say_how_to_install_their_library(
    spawn: Spawn, bundle: Path, tmp_path: Path, package: str
) -> None:
    (tmp_path / "key.pem").touch()
    (tmp_path / "model.sig").write_text('{"verificationMaterial": {"publicKey": {}}}')
    signature = ("--key", tmp_path / "key.pem", "--signature", tmp_path / "model.sig")
    for arguments in (("sign", bundle, *signature, "--force"), ("verify", bundle, *signature)):
        message = error_of(spawn(*arguments, prelude=hiding(package)))
        assert package in message and "pip install 'dragoman[sign]'" in message


@pytest.mark.parametrize(("metric", "package"), [("chrf", "sacrebleu"), ("rouge-l", "rouge_score")])
def test_metrics_say_how_to_install_their_library(
    spawn: Spawn, checkpoint: Path, tmp_path: Path, metric: str, package: str
) -> None:
    arguments = ("build", checkpoint, "-o", tmp_path / "out", "--metric", metric)
    message = error_of(spawn(*arguments, prelude=hiding(package)))
    assert package in message and "pip install 'dragoman[metrics]'" in message
    assert list(tmp_path.iterdir()) == []
