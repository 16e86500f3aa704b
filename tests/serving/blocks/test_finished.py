"""Finished blocks: kept whole, of the same work only, joined at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions
from dragoman.runtime.serving.blocks.decoder import Decoded
from dragoman.runtime.serving.blocks.finished import Finished, Joined, description_of
from dragoman.runtime.serving.blocks.source import Source, split

WORK = {"source": "1", "options": "2"}
DECODED = [Decoded(["A", ""], {1: "too long"}), Decoded(["C", "Ü"]), Decoded([""], {0: "odd"})]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "in").write_bytes(b"a\nb\nc\nd\ne\n")
    return split(tmp_path / "in", 2)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_blocks_in_any_order_become_the_output(source: Source, output: Path) -> None:
    finished = Finished(output, WORK)
    for index in (2, 0, 1):
        finished.add(source.blocks[index], DECODED[index])
    joined = finished.join(source)
    assert output.read_bytes() == "A\n\nC\nÜ\n\n".encode()
    assert joined == Joined(5, {2: "too long", 5: "odd"})
    assert not finished.folder.exists()


def test_an_empty_file(tmp_path: Path, output: Path) -> None:
    (tmp_path / "empty").touch()
    source = split(tmp_path / "empty", 2)
    finished = Finished(output, WORK)
    assert finished.missing(source) == []
    assert finished.join(source) == Joined(0, {})
    assert output.read_bytes() == b""


def test_another_process_goes_on(source: Source, output: Path) -> None:
    Finished(output, WORK).add(source.blocks[1], DECODED[1])
    again = Finished(output, WORK)
    assert again.missing(source) == [source.blocks[0], source.blocks[2]]


@pytest.mark.parametrize(
    "content", ["", '{"lines": ["C"', '{"lines": ["C"], "rejected": {}}', "[]", '{"lines": 1}']
)
def test_half_a_block_is_none(source: Source, output: Path, content: str) -> None:
    """As a machine that lost its power may leave one."""
    finished = Finished(output, WORK)
    for block, decoded in zip(source.blocks, DECODED, strict=True):
        finished.add(block, decoded)
    (finished.folder / "00000001.json").write_text(content, encoding="utf-8")
    assert finished.missing(source) == [source.blocks[1]]


def test_a_block_that_vanished_leaves_no_output(source: Source, output: Path) -> None:
    finished = Finished(output, WORK)
    finished.add(source.blocks[0], DECODED[0])
    with pytest.raises(DragomanError, match="was there, and is not any more"):
        finished.join(source)
    assert not output.exists()


def test_a_block_that_cannot_be_written_is_not_there(
    source: Source, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = Finished(output, WORK)

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dragoman.runtime.serving.blocks.finished._to_disk", full)
        with pytest.raises(OSError, match="No space left"):
            finished.add(source.blocks[0], DECODED[0])
    assert finished.missing(source) == list(source.blocks)


def test_what_other_work_left_is_refused(output: Path) -> None:
    Finished(output, WORK)
    with pytest.raises(DragomanError, match="found another options: repeat that run, or remove"):
        Finished(output, WORK | {"options": "3"})
    Finished(output, WORK)  # as it was


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"options": GenerationOptions(num_beams=2)}, "options"),
        ({"options": GenerationOptions(must_contain=["a"], num_beams=2)}, "options"),
        ({"form": "json"}, "form"),
        ({"block_lines": 3}, "lines of a block"),
        ({"source": dataclasses.replace(Source(Path("in"), "1", ()), sha256="2")}, "source"),
    ],
)
def test_what_is_other_work(tmp_path: Path, other: dict[str, Any], name: str) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    given: dict[str, Any] = {
        "source": Source(Path("in"), "1", ()),
        "block_lines": 2,
        "bundle": tmp_path,
        "options": GenerationOptions(),
        "form": "text",
    }
    one, another = description_of(**given), description_of(**given | other)
    assert [key for key in one if one[key] != another[key]] == [name]


def test_another_bundle_is_other_work_and_another_batch_size_is_not(tmp_path: Path) -> None:
    source, found = Source(Path("in"), "1", ()), []
    for name, manifest, size in (("a", "{}", 1), ("b", "{}", 64), ("c", "{ }", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest, encoding="utf-8")
        options = GenerationOptions(max_batch_size=size)
        found.append(description_of(source, 2, tmp_path / name, options, "text"))
    assert found[0] == found[1] != found[2]
