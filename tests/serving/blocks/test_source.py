"""Files in blocks of lines."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.runtime.serving.blocks.source import lines_of, split

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
