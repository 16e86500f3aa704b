"""Every peer decodes the same weights as asked, greedily and with beams: those in fp32 as the
reference does, all of them for exactly as many steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dragoman.benchmarks.compare.contenders.text import CTRANSLATE2, Workload, translators
from dragoman.benchmarks.compare.record import Row
from dragoman.benchmarks.compare.task import Run
from dragoman.benchmarks.compare.tasks.decoding import measure_decoding

from .doubles import OPENVINO, OPENVINO_PYTHON

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def ending(marian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that would always end at once: its end token is far more probable than any other."""
    directory = tmp_path_factory.mktemp("ending")
    shutil.copytree(marian, directory, dirs_exist_ok=True)
    file = directory / "model.safetensors"
    weights = load_file(file)
    weights["final_logits_bias"][0, 0] = 50.0
    save_file(weights, file, metadata={"format": "pt"})
    return directory


def measured(
    tools: tuple[str, ...], num_beams: int, checkpoint: Path, directory: Path
) -> list[Row]:
    """Of all contenders whose name begins so. That each takes every step is checked every turn."""
    contenders = translators(num_beams, openvino_in=OPENVINO)
    selected = {c.name for c in contenders if c.name.startswith(tools)}
    workload = Workload((1, 3), 7, 9, (1, 199), (1,), 1, num_beams=num_beams)
    run = Run(directory, only=sorted(selected))
    figures = measure_decoding(run, run.chosen(contenders), workload, checkpoint)
    measurements: list[Row] = figures["measurements"]
    assert not figures["failures"]
    assert len(selected) >= len(tools)
    assert {m["contender"] for m in measurements} == selected
    return measurements


def differing(measurements: list[Row]) -> set[str]:
    return {m["contender"] for m in measurements if m["fp32"] and m["identical"] < m["batch_size"]}


@pytest.mark.parametrize("num_beams", [1, 4])
def test_hugging_face_optimum_and_ctranslate2(num_beams: int, ending: Path, tmp_path: Path) -> None:
    """With beams CTranslate2 differs: it suppresses the end token before the softmax, Hugging Face
    after it, which ranks beams differently where the end token is probable."""
    tools = ("Hugging Face", "Optimum-ONNX", CTRANSLATE2)
    found = measured(tools, num_beams, ending, tmp_path)
    assert differing(found) <= ({f"{CTRANSLATE2} float32"} if num_beams > 1 else set())


def test_ctranslate2_has_the_same_beams_where_no_end_is_probable(
    marian: Path, tmp_path: Path
) -> None:
    assert not differing(measured((CTRANSLATE2,), 4, marian, tmp_path))


@pytest.mark.skipif(OPENVINO_PYTHON is None, reason="DRAGOMAN_OPENVINO_PYTHON is not set")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_openvino(num_beams: int, ending: Path, tmp_path: Path) -> None:
    assert not differing(measured(("OpenVINO",), num_beams, ending, tmp_path))
