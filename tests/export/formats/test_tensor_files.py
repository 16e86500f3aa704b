"""Weights in all the formats and splits that are published, and what is refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dragoman.errors import DragomanError
from dragoman.export.formats.tensor_files import read_weights

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}


def split(directory: Path, save: Callable[[Any, Path], object], ending: str) -> None:
    parts = {name: f"part-{name}.{ending}" for name in WEIGHTS}
    for name, file in parts.items():
        save({name: WEIGHTS[name]}, directory / file)
    stem = "model" if ending == "safetensors" else "pytorch_model"
    index = {"metadata": {"total_size": 0}, "weight_map": parts}
    (directory / f"{stem}.{ending}.index.json").write_text(json.dumps(index))


WAYS: dict[str, Callable[[Path], object]] = {
    "safetensors": lambda d: save_file(WEIGHTS, d / "model.safetensors"),
    "bin": lambda d: torch.save(WEIGHTS, d / "pytorch_model.bin"),
    "old bin": lambda d: torch.save(
        WEIGHTS, d / "pytorch_model.bin", _use_new_zipfile_serialization=False
    ),
    "safetensors in parts": lambda d: split(d, save_file, "safetensors"),
    "bin in parts": lambda d: split(d, torch.save, "bin"),
}


@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS.keys())
def test_every_format_gives_the_same(write: Callable[[Path], object], tmp_path: Path) -> None:
    write(tmp_path)
    weights, origin = read_weights(tmp_path)
    assert origin.is_file()
    assert weights.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert weights[name].dtype == tensor.dtype
        assert torch.equal(weights[name], tensor)


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("was-executed"),))


def test_code_in_a_file_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Malicious()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DragomanError, match=r"expected tensors only .*, found the Python object"):
        read_weights(tmp_path)
    for data, found in (
        (b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R.", "the Python object posix.system"),
        (b"\x80\x02\x93.", "others"),
    ):
        with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
            archive.writestr("m/data.pkl", data)
            archive.writestr("m/version", "3")
        with pytest.raises(DragomanError) as caught:
            read_weights(tmp_path)
        assert str(caught.value).endswith(
            f"expected tensors only (nothing else is loaded), found {found}"
        )
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Malicious()}, protocol=2))
    with pytest.raises(DragomanError, match=r"pytorch_model\.bin"):
        read_weights(tmp_path)
    assert not (tmp_path / "was-executed").exists()


def test_damage_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"expected model\.safetensors or pytorch_model\.bin"):
        read_weights(tmp_path)
    file = tmp_path / "pytorch_model.bin"
    torch.save(WEIGHTS, file)
    whole = file.read_bytes()
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"\x00" * 300):
        file.write_bytes(damaged)
        with pytest.raises(DragomanError, match=r"pytorch_model\.bin: "):
            read_weights(tmp_path)
    torch.save([1, 2], file)
    with pytest.raises(DragomanError, match="expected a dictionary, found list"):
        read_weights(tmp_path)
    torch.save({"a": 3, "b": torch.ones(1)}, file)
    with pytest.raises(DragomanError, match="expected tensors only, found others: a"):
        read_weights(tmp_path)


def test_numbers_of_8_bits_are_refused(tmp_path: Path) -> None:
    """PyTorch does not compare them, as tied tables are; and they lack their scales."""
    weights = WEIGHTS | {"c": torch.ones(3).to(torch.float8_e4m3fn)}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DragomanError, match="c: expected numbers of 16, 32 or 64 bits, found"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("[]", "expected a JSON object, found list"),
        ("{", "expected a JSON object, found text that is not JSON"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "expected a file beside the index"),
        ('{"weight_map": {"a": "x.safetensors"}}', r"x\.safetensors': expected a file, found none"),
        ('{"weight_map": {}}', r"index\.json: expected a JSON object with a weight_map"),
        ('{"weight_map": {"a": ""}}', r"index\.json: .*'': expected a file beside the index"),
        ('{"weight_map": {"a": "runs"}}', r"'runs': expected a regular file, found a directory"),
    ],
)
def test_a_wrong_index_is_one_error(index: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "runs").mkdir()
    with pytest.raises(DragomanError, match=problem):
        read_weights(tmp_path)


def test_a_weight_of_two_parts_is_refused(tmp_path: Path) -> None:
    split(tmp_path, save_file, "safetensors")
    index, part = tmp_path / "model.safetensors.index.json", tmp_path / "part-b.safetensors"
    save_file(WEIGHTS | {"a": -WEIGHTS["a"]}, part)
    with pytest.raises(DragomanError) as caught:
        read_weights(tmp_path)
    assert str(caught.value) == f"{index}: a: expected in one file, found in several"
