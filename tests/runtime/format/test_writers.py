"""Writers of bundles: each byte is written and hashed once, and the records are right."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer
from dragoman.runtime import Bundle, Manifest, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.runtime.format.writing import BundleWriter, ScratchWriter

from ...bundle_files import record_files

CONTENTS = {
    "encoder.onnx": b"\x12\x05coder",  # ONNX that says nothing but its producer's name
    "decoder.onnx": b"\x12\x09e decoder",
    "weights.bin": b"0123" * 99,
}
LARGE = bytes(range(256)) * 12_289
"""More than two chunks of a copy."""


@pytest.fixture
def manifest(plain_manifest: dict[str, Any]) -> Manifest:
    return manifest_from_json(json.dumps(plain_manifest), "p")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of everything that Dragoman gives to SHA-256, in order; other packages hash too."""
    sizes: list[int] = []
    sha256, file_digest = hashlib.sha256, hashlib.file_digest

    class Counting:
        def __init__(self, data: bytes = b"", **options: Any) -> None:
            caller: str = sys._getframe(1).f_globals["__name__"]
            self._counted = caller.startswith("dragoman.")
            self._digest = sha256(**options)
            self.update(data)

        def update(self, data: bytes) -> None:
            sizes.extend([len(data)] if data and self._counted else [])
            self._digest.update(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._digest, name)

    def counting_file_digest(file: Any, kind: str) -> Any:
        sizes.append(Path(file.name).stat().st_size)
        return file_digest(file, kind)

    monkeypatch.setattr(hashlib, "sha256", Counting)
    monkeypatch.setattr(hashlib, "file_digest", counting_file_digest)
    return sizes


def write(writer: BundleWriter) -> None:
    """All files, in parts, in another order than the manifest's."""
    with writer.open("weights.bin") as file:
        for begin in range(0, 396, 100):
            assert file.size == begin
            file.write(memoryview(CONTENTS["weights.bin"])[begin : begin + 100])
    for name in ("encoder.onnx", "decoder.onnx"):
        writer.write(name, CONTENTS[name])


def test_records_are_those_of_the_files(tmp_path: Path, manifest: Manifest) -> None:
    writer = BundleWriter(tmp_path)
    write(writer)
    bundle = writer.finish(manifest)
    assert {name: (tmp_path / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert bundle.manifest.files == record_files(tmp_path)
    assert [record.path for record in bundle.manifest.files] == sorted(CONTENTS)


def test_the_returned_bundle_equals_the_one_read(tmp_path: Path, manifest: Manifest) -> None:
    writer = BundleWriter(tmp_path)
    write(writer)
    bundle = writer.finish(manifest)
    assert bundle == read_bundle(tmp_path)
    assert bundle.directory == tmp_path
    assert manifest.files != bundle.manifest.files  # those given are replaced


def test_each_byte_is_hashed_once(tmp_path: Path, manifest: Manifest, hashed: list[int]) -> None:
    writer = BundleWriter(tmp_path)
    write(writer)
    writer.finish(manifest)
    assert sum(hashed) == sum(map(len, CONTENTS.values()))
    read_bundle(tmp_path)
    assert sum(hashed) == 2 * sum(map(len, CONTENTS.values()))  # the counting works


def test_a_file_is_copied_in_chunks_and_hashed_once(tmp_path: Path, hashed: list[int]) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "original").write_bytes(LARGE)
    writer = BundleWriter(tmp_path / "made")
    writer.copy(tmp_path / "original", "copy")
    assert (tmp_path / "made" / "copy").read_bytes() == LARGE
    assert sum(hashed) == len(LARGE)
    assert max(hashed) < len(LARGE)


def test_a_file_written_again_has_its_new_record(tmp_path: Path, manifest: Manifest) -> None:
    writer = BundleWriter(tmp_path)
    write(writer)
    writer.write("encoder.onnx", b"\x12\x0danother coder")
    assert writer.finish(manifest) == read_bundle(tmp_path)


def test_a_file_whose_block_fails_is_not_recorded(tmp_path: Path, manifest: Manifest) -> None:
    writer = BundleWriter(tmp_path)
    write(writer)
    with pytest.raises(ValueError, match="x"), writer.open("half") as file:
        file.write(b"ha")
        raise ValueError("x")
    assert "half" not in [record.path for record in writer.finish(manifest).manifest.files]


def test_tokenizers_are_copied_and_none_is_fine(
    tmp_path: Path, text_case: tuple[Transformer, Path], ids_case: tuple[Transformer, Path]
) -> None:
    for case, expected in (
        (text_case, ["source_tokenizer.json", "target_tokenizer.json"]),
        (ids_case, []),
    ):
        directory = tmp_path / case[1].parent.name
        directory.mkdir()
        BundleWriter(directory).copy_tokenizers(read_bundle(case[1]))
        assert sorted(path.name for path in directory.iterdir()) == expected
        for name in expected:
            assert (directory / name).read_bytes() == (case[1] / name).read_bytes()


def test_scratch_files_are_not_hashed_and_have_no_manifest(
    tmp_path: Path, manifest: Manifest, hashed: list[int]
) -> None:
    writer = ScratchWriter(tmp_path)
    write(writer)
    bundle = writer.finish(manifest)
    assert bundle == Bundle(tmp_path, manifest)
    assert hashed == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(CONTENTS)
    assert {name: (tmp_path / name).read_bytes() for name in CONTENTS} == CONTENTS


def test_an_export_hashes_what_it_writes_once(
    ids_case: tuple[Transformer, Path], tmp_path: Path, hashed: list[int]
) -> None:
    bundle = export_bundle(ids_case[0], tmp_path, name="once")
    assert sum(hashed) == bundle.size
    assert bundle == read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("target", "precision"), [("cpu", "fp32"), ("cpu", "int8"), ("neutral", "fp16")]
)
def test_optimizing_hashes_what_it_writes_once_and_nothing_else(
    target: str,
    precision: Precision,
    text_case: tuple[Transformer, Path],
    tmp_path: Path,
    hashed: list[int],
) -> None:
    """Neither bundle is read again to be checked."""
    neutral = read_bundle(text_case[1])
    hashed.clear()
    bundle = optimize_bundle(neutral, tmp_path, target=target, precision=precision)
    assert sum(hashed) == bundle.size
    assert bundle == read_bundle(tmp_path)


def test_optimizing_to_scratch_hashes_nothing(
    text_case: tuple[Transformer, Path], tmp_path: Path, hashed: list[int]
) -> None:
    neutral = read_bundle(text_case[1])
    hashed.clear()
    optimize_bundle(neutral, tmp_path, target="cpu", writer=ScratchWriter)
    assert hashed == []
    assert not (tmp_path / "manifest.json").exists()
