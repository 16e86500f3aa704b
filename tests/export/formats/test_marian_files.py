"""Files of Marian from strangers: refused in one line, without much work or memory."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.errors import DragomanError
from dragoman.export.formats.detection import marian_files
from dragoman.export.formats.marian import read_marian_file
from dragoman.reference_model import CheckpointError

from .marian_files import write_bin, write_npz

Write = Callable[[Path], object]

OPTIONS = {"type": "transformer", "enc-depth": "1"}
WEIGHTS = {"Wemb": np.arange(12, dtype=np.float32).reshape(3, 4)}


def configured(text: str) -> Write:
    """An npz with another configuration."""
    data: dict[str, Any] = {"special:model.yml": np.frombuffer(text.encode() + b"\0", np.int8)}
    return lambda path: np.savez(path, **data)


def with_array(array: Any) -> Write:
    return lambda path: write_npz(path, {"Wemb": array}, OPTIONS)


def zipped(name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> Write:
    """A file that has another member beside its configuration."""

    def write(path: Path) -> None:
        write_npz(path, WEIGHTS, OPTIONS)
        with zipfile.ZipFile(path, "a", method) as archive:
            archive.writestr(name, data)

    return write


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


ALIASES = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{key}: &{key} [*{last}, *{last}, *{last}, *{last}]\n"
    for last, key in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML, NPZ = "special:model.yml: not YAML: ", "expected a model.npz of Marian: "
HOSTILE: dict[str, tuple[Write, str]] = {
    "aliases": (configured(ALIASES), YAML + "expected no aliases"),
    "a character beyond Unicode": (configured(r'a: "\UFFFFFFFF"'), YAML),
    "nested lists": (configured("a: " + "[" * 5000), YAML),
    "a number of 5000 digits": (configured("%YAML 1." + "1" * 5000 + "\n---\na: 1"), YAML),
    "two documents": (configured("a: 1\n---\nb: 1"), YAML),
    "a list": (configured("[a, b]"), "special:model.yml: expected keys and values"),
    "a configuration of 2 MiB": (configured("a: " + "x" * 2**21), YAML + "more than 1048576 byte"),
    "objects": (with_array(np.array([{}], dtype=object)), NPZ + "expected numbers, found object"),
    "texts": (with_array(np.array(["a"])), NPZ + "expected numbers, found <U1"),
    "complex": (with_array(np.ones(2, np.complex64)), NPZ + "expected numbers, found complex64"),
    "a text": (zipped("readme.txt", b"text"), NPZ + "expected arrays, found readme.txt"),
    "many zeros": (zipped("a.npy", bytes(2**26), zipfile.ZIP_DEFLATED), "when it is unpacked"),
    "a shape of many": (zipped("a.npy", header((10**6, 10**7))), "needs 40000000000000 bytes"),
    "a shape of more": (zipped("a.npy", header((2**40, 2**40))), NPZ + "an array of shape"),
    "half a header": (zipped("a.npy", header((2,))[:40]), NPZ),
    "an array alone": (lambda path: path.write_bytes(header((2,))), NPZ + "File is not a z"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_npz(case: str, tmp_path: Path) -> None:
    write, problem = HOSTILE[case]
    write(tmp_path / "model.npz")
    with pytest.raises(CheckpointError) as caught:
        read_marian_file(tmp_path)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 600


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (-1, -1), (0, 2**31 - 1, 2**31 - 1)])
def test_items_of_no_or_negative_sizes(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_bin(path, {"Wemb": np.zeros((2, 2, 2)[: len(shape)], np.float32)}, OPTIONS)
    data = path.read_bytes()
    written = np.array((2, 2, 2)[: len(shape)], "<i4").tobytes()
    assert data.count(written) >= 1
    path.write_bytes(data.replace(written, np.array(shape, "<i4").tobytes(), 1))
    with pytest.raises(CheckpointError, match=r"Wemb of shape .* needs -?[0-9]+ bytes, found"):
        read_marian_file(tmp_path)


def test_arrays_of_both_orders(tmp_path: Path) -> None:
    array = np.asfortranarray(WEIGHTS["Wemb"])
    write_npz(tmp_path / "model.npz", {"Wemb": array, "one": np.full(1, 3, np.float32)}, OPTIONS)
    read = read_marian_file(tmp_path)
    assert read.options == OPTIONS
    np.testing.assert_array_equal(read.weights["Wemb"], array)
    np.testing.assert_array_equal(read.weights["one"], [3])


def test_other_archives_are_no_models(tmp_path: Path) -> None:
    """Such as the state of Marian's optimizer, or arrays of somebody else."""
    np.savez(tmp_path / "features.npz", Wemb=WEIGHTS["Wemb"])
    (tmp_path / "notes.npz").write_text("no archive")
    assert marian_files(tmp_path) == []
    write_npz(tmp_path / "model.iter1000.npz", WEIGHTS, OPTIONS)
    assert [path.name for path in marian_files(tmp_path)] == ["model.iter1000.npz"]
    write_npz(tmp_path / "model.iter2000.npz", WEIGHTS, OPTIONS)
    with pytest.raises(DragomanError, match=r"found model\.iter1000\.npz, model\.iter2000\.npz"):
        read_marian_file(tmp_path)
    write_npz(tmp_path / "model.npz", WEIGHTS, OPTIONS)
    assert read_marian_file(tmp_path).path == tmp_path / "model.npz"
