"""Files in blocks of lines: split, decoded as by `dragoman run`, resumed, written whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.runtime import BackendError, GenerationOptions, load, read_bundle
from dragoman.runtime.decoding.results import result_data
from dragoman.runtime.serving.file_blocks import (
    BlockDecoder,
    DecodedBlock,
    DecodedFile,
    FinishedBlocks,
    LineFile,
    OutputFormat,
    check_format,
    describe_work,
    lines_of,
    split,
)

from ..small_bundle import small_bundle

CONTENTS = [
    b"",
    b"\n",
    b"a",
    b"a\n",
    b"a\nb\nc\nd",
    b"a\n\n\nb\n\n",
    b"a\r\nb\r\n",
    b"\xff\xfe\n\x00\nc\n",
    "é\u2028ü\x0bo\nß\n".encode(),  # ends of lines elsewhere
]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("content", CONTENTS)
def test_blocks_are_all_lines_once_in_order(tmp_path: Path, content: bytes, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    source = split(path, size)
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    found = [lines_of(source.read(block)) for block in source.blocks]
    assert [line for lines in found for line in lines] == expected
    assert [len(lines) for lines in found] == [block.lines for block in source.blocks]
    assert all(block.lines == size for block in source.blocks[:-1])
    assert [block.first_line for block in source.blocks] == [
        1 + size * index for index in range(len(source.blocks))
    ]
    assert source.lines == len(expected)
    assert source.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(("name", "found"), [("none", "none"), (".", "something else")])
def test_what_is_no_file(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(DragomanError, match=f"expected a file of lines, found {found}$"):
        split(tmp_path / name, 1)


def test_a_file_that_was_cut_since(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\nb\n")
    source = split(path, 1)
    path.write_bytes(b"a\n")
    with pytest.raises(DragomanError, match="was changed while it was decoded"):
        source.read(source.blocks[1])


OPTIONS = GenerationOptions(max_new_tokens=5)
SOURCES = [[1, 2, 3], [4], [5, 6]]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without tokenizers."""
    return small_bundle(tmp_path_factory.mktemp("small"), 8)


def decoder(bundle: Path, form: OutputFormat = "text", backend: str | None = None) -> BlockDecoder:
    return BlockDecoder(bundle, OPTIONS, form, 1, backend)


def test_a_line_out_for_each(bundle: Path) -> None:
    decoded = decoder(bundle).decode(b"1 2 3\nword\n4\r\n\xff\n5 6")
    with load(bundle, threads=1) as model:
        texts = [" ".join(map(str, r.tokens)) for r in model.generate(SOURCES, OPTIONS)]
    assert decoded.lines == [texts[0], "", texts[1], "", texts[2]]
    assert decoded.rejected == {
        1: "expected token ids separated by spaces: this bundle has no tokenizers",
        3: "expected UTF-8 text: invalid start byte at byte 0",
    }


def test_prefixes_of_lines(bundle: Path, tmp_path: Path) -> None:
    """In blocks of two lines."""
    (tmp_path / "sources").write_bytes(b"1 2 3\n4\n5 6\n")
    (tmp_path / "prefixes").write_bytes(b"7 8\n\nx\n")
    source = split(tmp_path / "sources", 2, tmp_path / "prefixes")
    decoded = [decoder(bundle).decode(*source.inputs(block)) for block in source.blocks]
    with load(bundle, threads=1) as model:
        results = [
            model.generate([ids], OPTIONS, prefix=prefix)[0]
            for ids, prefix in zip(SOURCES, ([7, 8], None), strict=False)
        ]
    texts = [" ".join(map(str, result.tokens)) for result in results]
    assert texts[0].startswith("7 8 ")
    assert [block.lines for block in decoded] == [texts, [""]]
    assert decoded[1].rejected[0].startswith("prefix: expected token ids separated by spaces")
    work = [
        describe_work(each, 2, bundle, OPTIONS, "text")
        for each in (source, split(tmp_path / "sources", 2))
    ]
    assert work[0] != work[1]
    (tmp_path / "prefixes").write_bytes(b"7\n")
    with pytest.raises(DragomanError, match=r"a prefix for each of the 3 lines of .*, found 1$"):
        split(tmp_path / "sources", 2, tmp_path / "prefixes")


def test_objects(bundle: Path) -> None:
    decoded = decoder(bundle, "json").decode(b"1 2 3\nword\n")
    with load(bundle, threads=1) as model:
        (result,) = model.generate(SOURCES[:1], OPTIONS)
    good, bad = map(json.loads, decoded.lines)
    assert good == json.loads(json.dumps(result_data(result)))
    assert bad["finish_reason"] == "rejected" and bad["error"] == decoded.rejected[1]


def test_what_is_wrong_is_told_by_a_method(bundle: Path) -> None:
    made = decoder(bundle, backend="none")
    with pytest.raises(BackendError, match="unknown backend 'none'"):
        made.check()
    with pytest.raises(DragomanError, match="device: expected cpu for the backend onnxruntime"):
        BlockDecoder(bundle, OPTIONS, "text", 1, "onnxruntime", "cuda:1").check()


def test_options_are_checked(bundle: Path) -> None:
    made = BlockDecoder(bundle, GenerationOptions(source_language="de"), "text", 1, None)
    with pytest.raises(DragomanError, match="source_language"):
        made.check()


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(num_beams=2, num_return_sequences=2),
        GenerationOptions(timestamps=True),
    ],
)
def test_several_lines_need_json(bundle: Path, options: GenerationOptions) -> None:
    manifest = read_bundle(bundle).manifest
    check_format(manifest, options, "json")
    with pytest.raises(DragomanError, match="one line of output for each line"):
        check_format(manifest, options, "text")


WORK = {"source": "1", "options": "2"}
DECODED = [
    DecodedBlock(["A", ""], {1: "too long"}),
    DecodedBlock(["C", "Ü"]),
    DecodedBlock([""], {0: "odd"}),
]


@pytest.fixture
def source(tmp_path: Path) -> LineFile:
    (tmp_path / "in").write_bytes(b"a\nb\nc\nd\ne\n")
    return split(tmp_path / "in", 2)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_blocks_in_any_order_become_the_output(source: LineFile, output: Path) -> None:
    finished = FinishedBlocks(output, WORK)
    for index in (2, 0, 1):
        finished.add(source.blocks[index], DECODED[index])
    joined = finished.write_output(source)
    assert output.read_bytes() == "A\n\nC\nÜ\n\n".encode()
    assert joined == DecodedFile(5, {2: "too long", 5: "odd"})
    assert not finished.folder.exists()


def test_an_empty_file(tmp_path: Path, output: Path) -> None:
    (tmp_path / "empty").touch()
    source = split(tmp_path / "empty", 2)
    finished = FinishedBlocks(output, WORK)
    assert finished.missing(source) == []
    assert finished.write_output(source) == DecodedFile(0, {})
    assert output.read_bytes() == b""


def test_another_process_goes_on(source: LineFile, output: Path) -> None:
    FinishedBlocks(output, WORK).add(source.blocks[1], DECODED[1])
    again = FinishedBlocks(output, WORK)
    assert again.missing(source) == [source.blocks[0], source.blocks[2]]


@pytest.mark.parametrize(
    "content", ["", '{"lines": ["C"', '{"lines": ["C"], "rejected": {}}', "[]", '{"lines": 1}']
)
def test_half_a_block_is_none(source: LineFile, output: Path, content: str) -> None:
    """As a machine that lost its power may leave one."""
    finished = FinishedBlocks(output, WORK)
    for block, decoded in zip(source.blocks, DECODED, strict=True):
        finished.add(block, decoded)
    (finished.folder / "00000001.json").write_text(content, encoding="utf-8")
    assert finished.missing(source) == [source.blocks[1]]


def test_a_block_that_vanished_leaves_no_output(source: LineFile, output: Path) -> None:
    finished = FinishedBlocks(output, WORK)
    finished.add(source.blocks[0], DECODED[0])
    with pytest.raises(DragomanError, match="expected a finished block, found none"):
        finished.write_output(source)
    assert not output.exists()


def test_a_block_that_cannot_be_written_is_not_there(
    source: LineFile, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = FinishedBlocks(output, WORK)

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            finished.add(source.blocks[0], DECODED[0])
    assert finished.missing(source) == list(source.blocks)


def test_what_other_work_left_is_refused(output: Path) -> None:
    FinishedBlocks(output, WORK)
    with pytest.raises(DragomanError, match="found another options: repeat that run, or remove"):
        FinishedBlocks(output, WORK | {"options": "3"})
    FinishedBlocks(output, WORK)  # as it was


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"options": GenerationOptions(num_beams=2)}, "options"),
        ({"options": GenerationOptions(must_contain=["a"], num_beams=2)}, "options"),
        ({"output_format": "json"}, "form"),
        ({"block_lines": 3}, "lines of a block"),
        ({"source": dataclasses.replace(LineFile(Path("in"), "1", ()), sha256="2")}, "source"),
    ],
)
def test_what_is_other_work(tmp_path: Path, other: dict[str, Any], name: str) -> None:
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    work: dict[str, Any] = {
        "source": LineFile(Path("in"), "1", ()),
        "block_lines": 2,
        "bundle": tmp_path,
        "options": GenerationOptions(),
        "output_format": "text",
    }
    one, another = describe_work(**work), describe_work(**work | other)
    assert [key for key in one if one[key] != another[key]] == [name]


def test_another_bundle_is_other_work_and_another_batch_size_is_not(tmp_path: Path) -> None:
    source, found = LineFile(Path("in"), "1", ()), []
    for name, manifest, size in (("a", "{}", 1), ("b", "{}", 64), ("c", "{ }", 64)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest, encoding="utf-8")
        options = GenerationOptions(max_batch_size=size)
        found.append(describe_work(source, 2, tmp_path / name, options, "text"))
    assert found[0] == found[1] != found[2]
