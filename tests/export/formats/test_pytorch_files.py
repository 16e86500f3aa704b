"""A PyTorch file is read if all its tensors are in it in full, whatever its pickle says of them."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.export.formats.tensor_files import read_state_dict, read_weights
from dragoman.reference_model import CheckpointError

# PyTorch warns that nested and quantized tensors are going to change.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

FILE = "pytorch_model.bin"
FULL = "expected a tensor stored in full, found"

STRANGE: dict[str, tuple[Any, str]] = {
    "meta": (lambda: torch.empty(3, device="meta"), f"x: {FULL} one without numbers"),
    "sparse": (lambda: torch.eye(2).to_sparse(), f"x: {FULL} one in the layout sparse_coo"),
    "sparse rows": (lambda: torch.eye(2).to_sparse_csr(), "x: "),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        f"x: {FULL} a nested one",
    ),
    "expanded": (
        lambda: torch.ones(1).expand(2**31),
        rf"x: {FULL} a view that repeats its numbers, of shape \[2147483648\]",
    ),
    "overlapping": (
        lambda: torch.ones(20_000).as_strided((10_000, 10_000), (1, 1)),
        f"x: {FULL} a view",
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        f"x: {FULL} a quantized one",
    ),
    "8 bits": (
        lambda: torch.ones(3).to(torch.float8_e5m2),
        "x: expected numbers of 16, 32 or 64 bits, found torch.float8_e5m2",
    ),
    "no tensor": (lambda: [1.0], "expected tensors only, found others: x"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_of_other_kinds_are_refused(kind: str, tmp_path: Path) -> None:
    make, problem = STRANGE[kind]
    torch.save({"a": torch.ones(2), "x": make()}, tmp_path / FILE)
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: .*{problem}"):
        read_weights(tmp_path)


def test_a_state_dictionary_is_checked_too(tmp_path: Path) -> None:
    torch.save({"model": {"x": torch.ones(1).expand(2**31)}, "step": 3}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"a\.pt: x: expected a tensor stored in full"):
        read_state_dict(tmp_path)


@pytest.mark.parametrize("name", [3, None, ("a", "b"), b"a", "\ud800", ""])
def test_names_that_are_no_text_are_refused(name: Any, tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), name: torch.ones(2)}, tmp_path / FILE)
    with pytest.raises(CheckpointError, match="expected names as text, found"):
        read_weights(tmp_path)


ORDINARY: dict[str, Tensor] = {
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "a part": torch.arange(10.0)[2:9:3],
    "a parameter": nn.Parameter(torch.ones(3)),
    "a number": torch.tensor(3.0),
    "integers": torch.arange(4),
    "empty": torch.empty(0, 5),
    "half": torch.ones(3).bfloat16(),
}


@pytest.mark.parametrize("old", [True, False])
def test_ordinary_tensors_are_read(old: bool, tmp_path: Path) -> None:
    tied = torch.randn(5)
    weights = ORDINARY | {"tied": tied, "tied again": tied, "its part": tied[1:]}
    torch.save(weights, tmp_path / FILE, _use_new_zipfile_serialization=not old)
    found, _ = read_weights(tmp_path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def rewritten(
    path: Path,
    change: Callable[[str, bytes], bytes] = lambda name, data: data,
    compression: int = zipfile.ZIP_STORED,
) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(name, change(name, data))


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / FILE
    torch.save({"a": torch.zeros(2**24)}, path)
    rewritten(path, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"archive without compression, .* compressed"):
        read_weights(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_storage_larger_than_its_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE
    torch.save({"a": torch.ones(6)}, path)
    whole = path.read_bytes()

    def larger(name: str, data: bytes) -> bytes:
        if not name.endswith("data.pkl"):
            return data
        assert data.count(b"K\x06") == 2  # the numbers of the storage, and of the tensor
        return data.replace(b"K\x06", b"J" + struct.pack("<i", 2**28))

    rewritten(path, larger)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
        read_weights(tmp_path)
    # In files of before PyTorch 1.6 too.
    torch.save({"a": torch.ones(6)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"K\x06", b"J" + struct.pack("<i", 2**28)))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
        read_weights(tmp_path)
    path.write_bytes(whole)
    read_weights(tmp_path)


def test_entries_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A kilobyte that the directory of the archive lists a hundred times."""
    path = tmp_path / FILE
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", bytes(1000))
        first = archive.infolist()[0]
        for i in range(100):
            entry = zipfile.ZipInfo(f"a/data/{i}")
            entry.file_size = entry.compress_size = first.file_size
            entry.CRC, entry.header_offset = first.CRC, first.header_offset
            archive.filelist.append(entry)
    with pytest.raises(CheckpointError, match="its entries need 101000 bytes, found"):
        read_weights(tmp_path)
