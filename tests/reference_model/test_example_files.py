"""Files of examples: one source and its references per line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.reference_model.recipes import Example, read_examples, write_examples

EXAMPLES = [
    Example("tomato", ("T AH M EY T OW", "T AH M AA T OW")),
    Example("cat", ("K AE T",)),
    Example("no reference", ()),
    Example("Übung 日本 🐫", ("ein Text", "noch  einer")),
]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_round_trip(tmp_path: Path, count: int) -> None:
    write_examples(EXAMPLES[:count], tmp_path / "examples.tsv")
    assert read_examples(tmp_path / "examples.tsv") == EXAMPLES[:count]


def test_the_format(tmp_path: Path) -> None:
    write_examples(EXAMPLES[:2], tmp_path / "examples.tsv")
    content = (tmp_path / "examples.tsv").read_bytes()
    assert content == b"tomato\tT AH M EY T OW\tT AH M AA T OW\ncat\tK AE T\n"


@pytest.mark.parametrize(
    "content",
    [b"cat\tK AE T\ndog", b"cat\tK AE T\ndog\n\n", b"cat\tK AE T\r\ndog\r\n"],
)
def test_a_final_line_break_and_windows_line_breaks_are_optional(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "examples.tsv").write_bytes(content)
    assert read_examples(tmp_path / "examples.tsv") == [
        Example("cat", ("K AE T",)),
        Example("dog", ()),
    ]


@pytest.mark.parametrize("content", ["cat\tK AE T\n\ndog\n", "cat\n\tK AE T\n"])
def test_a_line_without_a_source_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "examples.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(DragomanError, match=r"examples\.tsv, line 2: expected a source text"):
        read_examples(tmp_path / "examples.tsv")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match=r"found nothing at .*nowhere"):
        read_examples(tmp_path / "nowhere")


def test_bytes_that_are_not_utf_8_are_reported(tmp_path: Path) -> None:
    (tmp_path / "examples.tsv").write_bytes(b"caf\xe9\tK AE F EY\n")
    with pytest.raises(DragomanError, match=r"examples\.tsv: expected UTF-8"):
        read_examples(tmp_path / "examples.tsv")


def test_a_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DragomanError):
        read_examples(tmp_path)


@pytest.mark.parametrize("symbol", ["\u2028", "\x85", "\x0c", "\x1e"])
def test_other_separators_are_part_of_the_text(tmp_path: Path, symbol: str) -> None:
    examples = [Example(f"one{symbol}two", ("a", f"b{symbol}c"))]
    write_examples(examples, tmp_path / "examples.tsv")
    assert read_examples(tmp_path / "examples.tsv") == examples


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\rb"])
def test_a_text_that_cannot_be_written_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DragomanError):
        write_examples([Example(text, ("x",))], tmp_path / "examples.tsv")
