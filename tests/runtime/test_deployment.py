"""A bundle runs where only numpy, tokenizers and ONNX Runtime are installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import soundfile

from dragoman.reference_model import Transformer
from dragoman.runtime import Model

Case = tuple[Transformer, Path]
WORDS = ["dragoman", "?", "", "interpreter"]
FORBIDDEN = (
    *("torch", "onnx", "onnx_ir", "onnxscript", "safetensors", "click", "rich"),
    *("av", "soxr"),
    *("dragoman.reference_model", "dragoman.export", "dragoman.optimize", "dragoman.cli"),
)

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        for blocked in BLOCKED:
            if name == blocked or name.startswith(blocked + "."):
                raise ImportError(f"{name} is blocked here")

BLOCKED = json.loads(sys.argv[1])
sys.meta_path.insert(0, Block())
"""
GENERATE = """
from dragoman.runtime import load
model = load(sys.argv[2], threads=1)
results = model.generate(json.loads(sys.argv[3]))
stream = [token.text for token in model.stream("dragoman")]
print(json.dumps([[[r.text, r.tokens, r.finish_reason] for r in results], stream]))
"""
LOADED = """
import dragoman.runtime, dragoman.runtime.audio
print(json.dumps(sorted(sys.modules)))
"""
TELL = """
from dragoman import DragomanError
from dragoman.runtime import load
try:
    load(sys.argv[2])
except DragomanError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""

READ_AUDIO = """
import numpy
from dragoman import DragomanError
from dragoman.runtime.audio import LogMel, read_audio
print(LogMel().chunk(read_audio(numpy.zeros(7))).shape)
try:
    read_audio(sys.argv[2])
except DragomanError as error:
    print(type(error).__name__, error)
"""


def run(script: str, *arguments: str, python: str = sys.executable) -> str:
    done = subprocess.run(
        [python, "-I", "-c", "import json, sys\n" + script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def expected_of(model: Model) -> list[object]:
    results = [[r.text, list(r.tokens), r.finish_reason] for r in model.generate(WORDS)]
    return [results, [token.text for token in model.stream("dragoman")]]


def test_importing_the_runtime_imports_nothing_heavy() -> None:
    loaded = set(json.loads(run(LOADED)))
    assert "dragoman.runtime.model" in loaded
    assert loaded.isdisjoint({*FORBIDDEN, "onnxruntime"})


def test_a_bundle_runs_where_other_packages_cannot_be_imported(
    text_case: Case, text_model: Model
) -> None:
    output = run(BLOCK + GENERATE, json.dumps(FORBIDDEN), str(text_case[1]), json.dumps(WORDS))
    assert json.loads(output) == expected_of(text_model)


def test_these_tests_do_block_imports() -> None:
    script = BLOCK + "try:\n import torch\nexcept ImportError as error: print(error)"
    assert run(script, json.dumps(FORBIDDEN)) == "torch is blocked here\n"


def test_without_onnx_runtime_the_error_says_what_to_install(text_case: Case) -> None:
    output = run(BLOCK + TELL, json.dumps(["onnxruntime"]), str(text_case[1]))
    kind, message = json.loads(output)
    assert kind == "BackendError"
    assert "the package onnxruntime cannot be imported" in message
    assert "pip install 'dragoman[cpu]'" in message


@pytest.mark.parametrize("missing", ["av", "soxr"])
def test_without_audio_libraries_the_error_says_what_to_install(
    tmp_path: Path, missing: str
) -> None:
    path = tmp_path / "silence.wav"
    soundfile.write(path, [0.0] * 100, 8000)
    features, error = run(BLOCK + READ_AUDIO, json.dumps([missing]), str(path)).splitlines()
    assert features == "(80, 3000)"
    assert error.startswith(f"AudioError the package {missing} cannot be imported")
    assert error.endswith("pip install 'dragoman[audio]'")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A separate environment, with links to the few packages that the runtime needs."""
    directory = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    (site_packages,) = directory.glob("lib/python*/site-packages")
    for name in ("dragoman", "numpy", "tokenizers", "onnxruntime", "flatbuffers"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.submodule_search_locations, name
        (site_packages / name).symlink_to(spec.submodule_search_locations[0])
    return str(directory / "bin" / "python")


@pytest.mark.skipif(sys.platform == "win32", reason="links to packages need privileges there")
def test_a_bundle_runs_in_an_environment_without_torch_and_onnx(
    text_case: Case, text_model: Model, bare_python: str
) -> None:
    script = "import importlib.util\nprint([importlib.util.find_spec(n) for n in sys.argv[1:]])"
    absent = ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors", "click", "rich", "pip")
    assert run(script, *absent, python=bare_python) == f"{[None] * len(absent)}\n"

    output = run(GENERATE, "", str(text_case[1]), json.dumps(WORDS), python=bare_python)
    assert json.loads(output) == expected_of(text_model)


FORK = """
import os, signal
from dragoman.runtime import load
model = load(sys.argv[1], threads=2)
words = json.loads(sys.argv[2])

def texts():
    return [result.text for result in model.generate(words)]

before = texts()
child = os.fork()
if not child:
    signal.alarm(60)
    assert texts() == before
    grandchild = os.fork()
    if not grandchild:
        signal.alarm(60)
        del model
        sys.exit(3)
    _, status = os.waitpid(grandchild, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
_, status = os.waitpid(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), texts() == before]))
"""


def test_a_process_that_forks_runs_the_model_and_exits(text_case: Case) -> None:
    """A session waits for its threads when it is freed; those are in the parent only."""
    assert json.loads(run(FORK, str(text_case[1]), json.dumps(WORDS))) == [3, True]
