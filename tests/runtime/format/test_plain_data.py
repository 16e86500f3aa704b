"""JSON data become dataclasses, or every reason why they cannot is reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain


@dataclass(frozen=True)
class Leaf:
    number: int
    maybe: str | None = None


@dataclass(frozen=True)
class Tree:
    text: str
    whole: int
    real: float
    flag: bool
    choice: Literal["a", "b", 3]
    either: int | str
    many: tuple[int | str, ...]
    leaves: tuple[Leaf, ...]
    by_name: dict[str, Leaf]
    anything: Any
    optional: Leaf | None
    absent: float = 2.5


TREE = Tree(
    text="t",
    whole=-3,
    real=0.5,
    flag=True,
    choice="b",
    either="e",
    many=(1, "two"),
    leaves=(Leaf(1), Leaf(2, "m")),
    by_name={"x": Leaf(7)},
    anything={"deep": [None, 1, {"er": True}]},
    optional=None,
)


def read(kind: Any, data: object) -> tuple[Any, list[str]]:
    problems = Problems()
    return from_plain(kind, data, "top", problems), list(problems)


def test_what_is_written_is_read_back_equal() -> None:
    text = json.dumps(to_plain(TREE))
    assert read(Tree, json.loads(text)) == (TREE, [])


def test_dataclasses_become_objects_and_tuples_lists() -> None:
    assert to_plain(TREE)["leaves"] == [
        {"number": 1, "maybe": None},
        {"number": 2, "maybe": "m"},
    ]
    assert to_plain(TREE)["many"] == [1, "two"]
    assert to_plain(TREE)["by_name"] == {"x": {"number": 7, "maybe": None}}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (str, ""),
        (int, -1),
        (float, 1.5),
        (bool, False),
        (Literal["a", 3], 3),
        (int | str, "x"),
        (int | None, None),
        (int | None, 4),
        (dict[str, int], {}),
        (Any, [{"x": None}]),
    ],
)
def test_data_of_the_right_kind_are_accepted(kind: Any, data: object) -> None:
    assert read(kind, data) == (data, [])


def test_an_integer_is_a_number_and_becomes_a_float() -> None:
    value, problems = read(float, 3)
    assert (value, type(value), problems) == (3.0, float, [])


@pytest.mark.parametrize(
    ("kind", "data", "problem"),
    [
        (str, 1, "top: expected a text, found 1"),
        (str, None, "top: expected a text, found None"),
        (int, 1.0, "top: expected an integer, found 1.0"),
        (int, "1", "top: expected an integer, found '1'"),
        (int, True, "top: expected an integer, found True"),
        (float, False, "top: expected a number, found False"),
        (float, "1", "top: expected a number, found '1'"),
        (bool, 1, "top: expected true or false, found 1"),
        (Literal["a", 3], "b", "top: expected one of 'a', 3, found 'b'"),
        (Literal[1, 0], True, "top: expected one of 1, 0, found True"),
        (int | str, 1.5, "top: expected an integer or a text, found 1.5"),
        (int | str, True, "top: expected an integer or a text, found True"),
        (int | None, "x", "top: expected an integer, found 'x'"),
        (tuple[int, ...], {"0": 1}, "top: expected a list, found {'0': 1}"),
        (tuple[int, ...], "12", "top: expected a list, found '12'"),
        (tuple[int, ...], [0, "x"], "top[1]: expected an integer, found 'x'"),
        (dict[str, int], [1], "top: expected an object, found [1]"),
        (dict[str, int], {"a": 1, "b": "x"}, "top.b: expected an integer, found 'x'"),
        (Leaf, [], "top: expected an object, found []"),
        (Leaf | None, 0, "top: expected an object, found 0"),
        (Leaf | None, {}, "top.number: missing"),
        (Leaf, {"number": 1, "more": 2}, "top.more: unknown name"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_with_its_path(
    kind: Any, data: object, problem: str
) -> None:
    assert read(kind, data) == (None, [problem])


def test_all_problems_are_listed_with_their_paths() -> None:
    data = to_plain(TREE)
    del data["text"]
    data |= {
        "whole": True,
        "choice": 4,
        "many": [1, None],
        "leaves": [{"number": "1"}, {"number": 2, "maybe": 3, "extra": 0}],
        "by_name": {"x": {}},
        "optional": {"number": None},
        "surplus": 1,
    }
    value, problems = read(Tree, data)
    assert value is None
    assert sorted(problems) == sorted(
        [
            "top.surplus: unknown name",
            "top.text: missing",
            "top.whole: expected an integer, found True",
            "top.choice: expected one of 'a', 'b', 3, found 4",
            "top.many[1]: expected an integer or a text, found None",
            "top.leaves[0].number: expected an integer, found '1'",
            "top.leaves[1].extra: unknown name",
            "top.leaves[1].maybe: expected a text, found 3",
            "top.by_name.x.number: missing",
            "top.optional.number: expected an integer, found None",
        ]
    )


def test_a_default_stands_in_for_a_missing_name() -> None:
    data = to_plain(TREE)
    del data["absent"]
    assert read(Tree, data) == (TREE, [])


def test_earlier_problems_do_not_spoil_a_valid_value() -> None:
    problems = Problems(["an earlier one"])
    assert from_plain(Leaf, {"number": 1}, "here", problems) == Leaf(1)
    assert problems == ["an earlier one"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    _, problems = read(int, "x" * 10_000)
    assert len(problems[0]) < 120
    assert problems[0].endswith("...")


def test_a_number_beyond_64_bits_is_a_problem() -> None:
    value, problems = read(float, 10**400)
    assert value is None
    assert len(problems) == 1
    assert problems[0].startswith("top: expected a number")


def test_data_nested_too_deeply_to_be_shown_are_a_problem() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    value, problems = read(int, nested)
    assert value is None
    assert problems == ["top: expected an integer, found a list too large to show"]
