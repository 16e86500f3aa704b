"""Outputs end at a stop, however their text is split into tokens."""

from __future__ import annotations

import random

import pytest

from dragoman.runtime.serving.apis.openai.completions import StopBuffer


def told(pieces: list[str], stops: list[str]) -> tuple[list[str], StopBuffer]:
    """The text released after each token, and at the end."""
    output, found = StopBuffer(stops), list[str]()
    for piece in pieces:
        found.append(output.add(piece))
        if output.stopped:
            break
    return [*found, output.rest()], output


def test_a_possible_beginning_of_a_stop_is_held_back() -> None:
    assert told(["a", "b", "x", "ab"], ["abc"])[0] == ["", "", "abx", "", "ab"]
    assert told(["a", "b", "c", "d"], ["bcd", "e"])[0] == ["a", "", "", "", ""]
    assert told(["ab", "", "c"], [])[0] == ["ab", "", "c", ""]


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "offsets"),
    [
        (["one", " two", " three"], [" t"], "one", [0]),
        (["one", " two", " three"], ["wo"], "one t", [0, 3]),
        (["one", " two", " three"], ["one"], "", []),
        (["one", "", " two"], ["two"], "one ", [0, 3, 3]),  # an incomplete character
        (["abcd"], ["abcd", "bc"], "a", [0]),  # which is complete first
        (["a", "b"], ["c"], "ab", [0, 1]),
        (["a", ""], ["c"], "a", [0, 1]),
    ],
)
def test_tokens_that_begin_before_a_stop(
    pieces: list[str], stops: list[str], text: str, offsets: list[int]
) -> None:
    output = told(pieces, stops)[1]
    assert (output.text, output.offsets) == (text, offsets)


@pytest.mark.parametrize("seed", range(50))
def test_released_text_does_not_depend_on_the_tokens(seed: int) -> None:
    generator = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(generator.choices("ab", k=generator.randint(1, longest)))

    whole, stops = text(30), [text(6) + "b" for _ in range(3)]
    ends = [(whole.index(stop) + len(stop), whole.index(stop)) for stop in stops if stop in whole]
    expected = whole[: min(ends)[1]] if ends else whole
    pieces, rest = [], whole
    while rest:
        size = generator.randint(1, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    found, output = told(pieces, stops)
    assert "".join(found) == output.text == expected
    assert output.stopped == bool(ends)
