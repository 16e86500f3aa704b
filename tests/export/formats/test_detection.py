"""The names of a directory's files show its format, and whether it can be a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import READERS, open_checkpoint, read_checkpoint
from dragoman.export.formats.detection import FORMATS, check_is_checkpoint, format_of
from dragoman.export.locating import locate_checkpoint

Change = Callable[[Path], object]


def config(text: str) -> Change:
    return lambda directory: (directory / "config.json").write_text(text)


def replace_by_file(directory: Path) -> None:
    directory.rmdir()
    directory.touch()


REFUSED: dict[str, tuple[Change, str]] = {
    "missing": (
        Path.rmdir,
        "expected the directory of a checkpoint, found no such directory",
    ),
    "a file": (
        lambda directory: (
            directory.rename(directory.with_name("old")).with_name("checkpoint").touch()
        ),
        "expected the directory of a checkpoint, found a file",
    ),
    "empty": (lambda directory: None, ".bin of Marian, found an empty directory"),
    "other files": (
        lambda directory: (directory / "notes.txt").write_text("x"),
        "config.json beside its weights, model.bin of CTranslate2, or model.npz or .bin of "
        "Marian, found none of them",
    ),
    "only weights": (
        lambda directory: (directory / "model.safetensors").write_text("x"),
        "expected a checkpoint with config.json and model.safetensors, found no config.json",
    ),
    "no weights": (config("{}"), "found no model.safetensors"),
    "a known type without weights": (
        config('{"model_type": "t5"}'),
        "expected model.safetensors or pytorch_model.bin, or an index of their parts, found none",
    ),
    "not JSON": (config("{"), "config.json: expected a JSON object, found text that is not JSON"),
    "a list": (config("[]"), "config.json: expected a JSON object, found list"),
    "unknown type": (
        config('{"model_type": "llama"}'),
        "config.json: model_type: expected one of albert, bart, bert, camembert, distilbert, "
        "electra, gpt2, m2m_100, marian, mbart, mpnet, mt5, pegasus, pytorch-seq2seq, roberta, t5, "
        "torch.nn.Transformer, whisper, xlm-roberta, found 'llama'",
    ),
    "DeBERTa": (config('{"model_type": "deberta-v2"}'), "xlm-roberta, found 'deberta-v2'"),
    "a model type that is a list": (config('{"model_type": ["t5"]}'), "found ['t5']"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_directories_are_refused(case: str, tmp_path: Path) -> None:
    change, problem = REFUSED[case]
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    change(directory)
    with pytest.raises(DragomanError) as caught:
        check_is_checkpoint(directory)
    assert str(caught.value).startswith(str(directory))
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(DragomanError):
        read_checkpoint(directory)


@pytest.mark.parametrize(
    ("values", "files", "expected"),
    [
        ({"model_type": "bart"}, ["model.safetensors"], "Hugging Face"),
        ({"model_type": "bart"}, ["pytorch_model.bin.index.json"], "Hugging Face"),
        ({"model_type": "torch.nn.Transformer"}, [], "state dictionary"),
        # A Hugging Face directory may have a model.bin too.
        ({"model_type": "t5"}, ["model.bin", "pytorch_model.bin"], "Hugging Face"),
        ({"d_model": 4}, ["model.bin"], "CTranslate2"),
        (None, ["model.bin"], "CTranslate2"),
        (None, ["model.npz", "vocab.spm"], "Marian"),
        ({"d_model": 4}, ["model.safetensors"], "Dragoman"),
    ],
)
def test_the_format_is_recognised_by_the_files(
    values: dict[str, object] | None, files: list[str], expected: str, tmp_path: Path
) -> None:
    if values is not None:
        (tmp_path / "config.json").write_text(json.dumps(values))
    for name in files:
        (tmp_path / name).touch()
    assert check_is_checkpoint(tmp_path) == (values or {})
    assert format_of(tmp_path, values or {}).name == expected


def test_every_format_has_a_reader() -> None:
    assert {known.name for known in FORMATS} == READERS.keys()


def test_checking_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code = f"""
import sys
heavy = ["torch", "onnx", "onnx_ir", "numpy", "safetensors", "tokenizers"]
sys.modules.update(dict.fromkeys(heavy))
import pathlib
from dragoman import DragomanError
from dragoman.export.formats.detection import check_is_checkpoint
try:
    check_is_checkpoint(pathlib.Path({str(tmp_path)!r}))
except DragomanError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "model_type: expected one of albert" in done.stdout


def test_the_configuration_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    plain_open = Path.open

    def counting_open(path: Path, *arguments: Any, **options: Any) -> IO[Any]:
        opened.append(path)
        file: IO[Any] = plain_open(path, *arguments, **options)
        return file

    monkeypatch.setattr(Path, "open", counting_open)
    located = locate_checkpoint("g2p-en")
    open_checkpoint(located)
    assert opened.count(located.directory / "config.json") == 1
