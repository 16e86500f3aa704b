"""A damaged bundle is refused, and the error lists everything that is wrong with its files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.runtime import BundleError, load, read_bundle
from dragoman.runtime.format import bundle as reading

Plain = dict[str, Any]


def problems_of(directory: Path) -> list[str]:
    with pytest.raises(BundleError) as caught:
        read_bundle(directory)
    assert isinstance(caught.value, DragomanError)
    assert str(directory) in str(caught.value)
    return caught.value.problems


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def test_an_intact_bundle_is_read(small_bundle: Path, plain_manifest: Plain) -> None:
    bundle = read_bundle(small_bundle)
    assert json.loads(bundle.manifest.to_json()) == plain_manifest
    assert bundle.path("data/weights.bin").read_bytes() == b"0123"
    assert bundle.size == len(b"encoder") + len(b"the decoder") + len(b"0123")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (
        lambda d: (d / "encoder.onnx").write_bytes(b"encode"),
        "encoder.onnx: expected 7 bytes, found 6",
    ),
    "empty": (
        lambda d: (d / "encoder.onnx").write_bytes(b""),
        "encoder.onnx: expected 7 bytes, found 0",
    ),
    "grown": (
        lambda d: (d / "encoder.onnx").write_bytes(b"encoder\n"),
        "encoder.onnx: expected 7 bytes, found 8",
    ),
    "one bit flipped": (lambda d: flip(d / "data/weights.bin", 3), "data/weights.bin: its SHA-256"),
    "missing": (lambda d: (d / "decoder.onnx").unlink(), "decoder.onnx: missing"),
}


def a_directory(bundle: Path) -> None:
    (bundle / "decoder.onnx").unlink()
    (bundle / "decoder.onnx").mkdir()


def a_pipe(bundle: Path) -> None:
    (bundle / "decoder.onnx").unlink()
    os.mkfifo(bundle / "decoder.onnx")


DAMAGE["a directory"] = (a_directory, "decoder.onnx: expected a file")
DAMAGE["a pipe"] = (a_pipe, "decoder.onnx: expected a file")
DAMAGE["a sparse terabyte"] = (
    lambda d: os.truncate(d / "decoder.onnx", 1 << 40),
    "decoder.onnx: expected 11 bytes, found 1099511627776",
)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_reported(small_bundle: Path, name: str) -> None:
    damage, expected = DAMAGE[name]
    damage(small_bundle)
    (problem,) = problems_of(small_bundle)
    assert problem.startswith(expected)


def test_all_damaged_files_are_reported_at_once(small_bundle: Path) -> None:
    for name in ("grown", "one bit flipped", "missing"):
        DAMAGE[name][0](small_bundle)
    problems = problems_of(small_bundle)
    assert len(problems) == 3
    for name in ("grown", "one bit flipped", "missing"):
        assert any(problem.startswith(DAMAGE[name][1]) for problem in problems)


@pytest.mark.parametrize("index", [0, 3, 6])
def test_a_flipped_bit_is_detected_anywhere_in_a_file(small_bundle: Path, index: int) -> None:
    flip(small_bundle / "encoder.onnx", index)
    assert len(problems_of(small_bundle)) == 1
    flip(small_bundle / "encoder.onnx", index)
    read_bundle(small_bundle)


@pytest.mark.parametrize(
    "path",
    ["../outside", "data/../../outside", "/outside", "", ".", "..", "a\0b"],
)
def test_a_path_outside_the_bundle_is_never_read(
    small_bundle: Path, plain_manifest: Plain, path: str
) -> None:
    """The file outside matches its record: only its path is wrong."""
    outside = small_bundle.parent / "outside"
    outside.write_bytes(b"0123")
    record = dict(plain_manifest["files"][2], path=path)
    if path.startswith("/"):
        record["path"] = str(outside)
    plain_manifest["files"].append(record)
    (small_bundle / "manifest.json").write_text(json.dumps(plain_manifest))
    (small_bundle / "decoder.onnx").unlink()
    problems = problems_of(small_bundle)
    assert len(problems) == 2
    assert problems[0] == "decoder.onnx: missing"
    assert "expected a path inside the bundle" in problems[1]


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none") == ["expected a bundle, found no such directory"]


def test_a_directory_without_manifest_is_reported(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == ["expected a bundle, found no manifest.json in it"]


def test_a_file_in_place_of_the_directory_is_reported(small_bundle: Path) -> None:
    assert problems_of(small_bundle / "encoder.onnx") == [
        "expected a bundle, found no manifest.json in it"
    ]


def test_a_directory_in_place_of_the_manifest_is_reported(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    (problem,) = problems_of(tmp_path)
    assert problem == "expected a regular file, found a directory"


def test_a_pipe_in_place_of_the_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    assert problems_of(tmp_path) == ["expected a regular file, found a pipe"]


def test_a_manifest_of_a_terabyte_is_not_read(small_bundle: Path) -> None:
    os.truncate(small_bundle / "manifest.json", 1 << 40)
    assert problems_of(small_bundle) == [
        "expected a file of at most 16777216 bytes, found one of 1099511627776"
    ]


def test_a_manifest_with_a_name_twice_is_reported(small_bundle: Path) -> None:
    manifest = small_bundle / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name":', '"name": "another", "name":', 1))
    assert problems_of(small_bundle) == [
        "expected JSON: expected each name once in an object, found 'name' twice"
    ]


def test_a_manifest_that_is_not_utf_8_is_reported(small_bundle: Path) -> None:
    manifest = small_bundle / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"by hand", b"by h\xe4nd"))
    (problem,) = problems_of(small_bundle)
    assert problem.startswith("expected UTF-8 text: ")


def test_a_truncated_manifest_is_reported(small_bundle: Path) -> None:
    manifest = small_bundle / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    (problem,) = problems_of(small_bundle)
    assert problem.startswith("expected JSON: ")


def test_load_refuses_what_read_bundle_refuses(small_bundle: Path) -> None:
    DAMAGE["one bit flipped"][0](small_bundle)
    with pytest.raises(BundleError, match="SHA-256"):
        load(small_bundle)
    with pytest.raises(BundleError, match="no such directory"):
        load(str(small_bundle) + " that is not there")


@pytest.fixture
def hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose SHA-256 is computed; those of weights count as large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(reading, "LARGE", 4)
    names, digest = list[str](), hashlib.file_digest

    def counted(file: Any, algorithm: str) -> Any:
        names.append(Path(file.name).name)
        return digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def test_a_large_file_is_hashed_once_unless_it_changes(
    small_bundle: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SETTLED", -1.0)
    read_bundle(small_bundle, remembered=True)
    read_bundle(small_bundle, remembered=True)
    assert hashed == ["weights.bin"]
    read_bundle(small_bundle)
    assert hashed == ["weights.bin"] * 2
    weights = small_bundle / "data/weights.bin"
    before = weights.stat()
    while weights.stat().st_ctime_ns == before.st_ctime_ns:  # until the clock of files moves on
        flip(weights, 0)
        flip(weights, 0)
    flip(weights, 0)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_ino == before.st_ino
    with pytest.raises(BundleError, match=r"weights\.bin: its SHA-256"):
        read_bundle(small_bundle, remembered=True)


def test_a_file_that_has_just_been_written_is_not_remembered(
    small_bundle: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SETTLED", 1e6)
    read_bundle(small_bundle, remembered=True)
    read_bundle(small_bundle, remembered=True)
    assert hashed == ["weights.bin"] * 2


def test_a_file_is_hashed_where_nothing_can_be_remembered(
    small_bundle: Path, hashed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SETTLED", -1.0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    read_bundle(small_bundle, remembered=True)
    read_bundle(small_bundle, remembered=True)
    assert hashed == ["weights.bin"] * 2
