"""JSON is read as RFC 8259 defines it, wherever it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.files.regular_files import FileError
from dragoman.files.strict_json import MAX_DEPTH, parse_json, read_json, read_json_object

VALUES: list[Any] = [
    None,
    True,
    0,
    -1.5e300,
    10**30,  # which tokenizers state as their longest text
    "",
    "\N{PILE OF POO}\0\u2028",
    [],
    {"": {"a": [1, [2, {"b": None}]]}},
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_python_writes_is_read_back(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "expected finite numbers, found NaN"),
        ('{"a": [Infinity]}', "expected finite numbers, found Infinity"),
        ("[-Infinity]", "expected finite numbers, found -Infinity"),
        ("1e999", "expected finite numbers, found 1e999"),
        ('{"a": -1e400}', "expected finite numbers, found -1e400"),
        ('{"a": 1, "b": 2, "a": 1}', "expected each name once in an object, found 'a' twice"),
        ('[{"x": {"": 1, "": 1}}]', "expected each name once in an object, found '' twice"),
        (r'{"a": "\ud800"}', r"half of a surrogate pair: \ud800"),
        (r'{"\udc00": 1}', r"half of a surrogate pair: \udc00"),
        (r'["a", ["x\uDBFF"]]', r"half of a surrogate pair: \udbff"),
        ("", "Expecting value"),
        ("{'a': 1}", "Expecting property name"),
        ("[1,]", "Expecting value"),
        ("[1] 2", "Extra data"),
        ("\ufeff{}", "BOM"),
        ("9" * 5000, "digits"),
        ('"\x01"', "control character"),
    ],
)
def test_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(text)
    assert problem in str(caught.value)


def test_both_halves_of_a_surrogate_pair_are_a_character() -> None:
    assert parse_json(r'["\ud83d\ude00", "\\ud800"]') == ["\N{GRINNING FACE}", r"\ud800"]


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_nesting_is_bounded(before: str, after: str) -> None:
    most = MAX_DEPTH // len(after)
    parse_json(before * most + "1" + after * most)
    for depth in (most + 1, 5_000, 300_000):
        with pytest.raises(ValueError, match="deep"):
            parse_json(before * depth + "1" + after * depth)


def test_a_name_twice_among_a_million_is_found_at_once() -> None:
    names = [f'"{i}":0' for i in range(200_000)]
    with pytest.raises(ValueError, match="found '199999' twice"):
        parse_json("{" + ",".join([*names, '"199999":0']) + "}")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    path.write_text('{"ä": 1}', encoding="utf-8")
    assert read_json(path) == read_json_object(path) == {"ä": 1}
    for content, problem in (
        (b'{"\xe4": 1}', "expected JSON: 'utf-8' codec"),
        (b"{", "expected JSON: Expecting property name"),
        (b'{"a": NaN}', "expected JSON: expected finite numbers"),
    ):
        path.write_bytes(content)
        with pytest.raises(FileError, match=problem) as caught:
            read_json(path)
        assert str(caught.value).startswith(f"{path}: ")
    path.write_text("[]")
    assert read_json(path) == []
    with pytest.raises(FileError, match="expected a JSON object, found list"):
        read_json_object(path)
