"""The kit of real packages, for this machine's Python: made from downloads, installed without an
index into an empty environment, imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from dragoman.benchmarks.gpu.kit.contents import PACKS
from dragoman.benchmarks.gpu.kit.making import make_kit

pytestmark = pytest.mark.kit

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

IMPORTS = """
import json, sys
import click, ctranslate2, cuda.bindings.runtime, dragoman.runtime, onnx_ir, onnxruntime
import polygraphy, rapidfuzz, rich, soundfile, soxr, tensorrt_rtx
from dragoman.benchmarks.real_models import downloaded_whisper
modules = ["click", "ctranslate2", "cuda.bindings.runtime", "dragoman.runtime", "onnx_ir"]
modules += ["onnxruntime", "polygraphy", "rapidfuzz", "rich", "soundfile", "soxr", "tensorrt_rtx"]
builder = tensorrt_rtx.Builder(tensorrt_rtx.Logger())
print(json.dumps({
    "files": {name: sys.modules[name].__file__ for name in modules},
    "providers": onnxruntime.get_available_providers(),
    "tensorrt": tensorrt_rtx.__version__,
    "whisper": str(downloaded_whisper("tiny.en")),
    "network": builder.create_network(0).num_layers,
}))
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("kit") / "made"
    return directory, make_kit(ROOT, directory, python=PYTHON)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment, without pip."""
    directory = tmp_path_factory.mktemp("empty")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(directory)
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def installed(
    kit: tuple[Path, dict[str, Any]], python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """The folder, and what the script said. Parts arrive one at a time."""
    directory, made = kit
    target, delivery = (tmp_path_factory.mktemp(name) for name in ("installed", "delivery"))
    output = ""
    for pack in reversed(made["packs"]):
        for part in reversed(pack["parts"]):
            shutil.copy(directory / part["file"], delivery)
            done = install(python, directory, target, delivery)
            assert done.returncode == 1  # an empty environment has none of what the kit needs
            output = done.stdout
            (delivery / part["file"]).unlink()
    return target, output


def install(
    python: Path, kit: Path, target: Path, *folders: Path
) -> subprocess.CompletedProcess[str]:
    command = [python, kit / "install.py", *folders, "--to", target]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_sizes(kit: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    directory, made = kit
    sizes = {path.name: path.stat().st_size for path in directory.glob("*.tar.xz.*")}
    assert max(sizes.values()) <= 45_000_000
    with capsys.disabled():
        print()
        for pack in made["packs"]:
            print(f"{pack['size'] / 1e6:7.1f} MB in {len(pack['parts'])} parts, {pack['name']}")
    engines = made["packs"][0]
    assert engines["name"] == "tensorrt-rtx"
    assert engines["size"] < 64 << 20


def test_everything_is_installed(installed: tuple[Path, str]) -> None:
    _, output = installed
    assert output.count(": installed") == len(PACKS)
    assert "numpy: expected >=" in output
    assert "torch: expected >=2.9, found none" in output


def test_everything_is_imported_from_the_kit(installed: tuple[Path, str]) -> None:
    """Before what this environment has, such as onnxruntime for the processor."""
    target, _ = installed
    environment = os.environ | {"PYTHONPATH": str(target), "DRAGOMAN_REAL": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env=environment,
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for file in found["files"].values():
        assert Path(file).is_relative_to(target)
    assert "CUDAExecutionProvider" in found["providers"]
    assert found["tensorrt"] == "1.7.1.116"
    assert found["whisper"] == str(target / "whisper-tiny.en")
    assert found["network"] == 0


def test_a_damaged_and_a_missing_part_are_named(
    kit: tuple[Path, dict[str, Any]], python: Path, tmp_path: Path
) -> None:
    directory, made = kit
    first, second = (part["file"] for part in made["packs"][0]["parts"])
    delivery = tmp_path / "delivery"
    delivery.mkdir()
    content = bytearray((directory / first).read_bytes())
    content[20_000_000] ^= 1
    (delivery / first).write_bytes(content)
    output = install(python, directory, tmp_path / "target", delivery).stdout
    assert f"damaged: {delivery / first}: expected SHA-256" in output
    assert f"missing: {second} (part 2 of 2" in output
    assert {path.name for path in (tmp_path / "target").iterdir()} == {".kit"}
