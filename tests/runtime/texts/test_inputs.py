"""Kinds of inputs; an input that cannot be decoded is rejected and does not affect the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.runtime import Model, RejectedError, Result
from dragoman.runtime.arguments import Source

GOOD = [3, 4, 5]


def one_among_good(model: Model, source: Any) -> Result:
    """Its result, after a check that the good inputs beside it are not affected."""
    expected = model.generate([GOOD, [7]])
    first, result, last = model.generate([GOOD, source, [7]])
    assert [first.tokens, last.tokens] == [expected[0].tokens, expected[1].tokens]
    assert first.finish_reason in ("end", "length")
    return result


def rejection(model: Model, source: Any) -> str:
    result = one_among_good(model, source)
    assert (result.finish_reason, result.tokens, result.log_probability) == ("rejected", (), 0.0)
    assert result.error
    with pytest.raises(RejectedError) as caught:
        model.stream(source)
    assert str(caught.value) == result.error
    assert isinstance(caught.value, DragomanError)
    return result.error


@pytest.mark.parametrize(
    "source",
    [
        (3, 4, 5),
        range(3, 6),
        np.array(GOOD),
        np.array(GOOD, np.int32),
        np.array(GOOD, np.uint8),
        [np.int64(3), 4, 5],
        np.arange(9)[3:9:1][:3],
    ],
    ids=repr,
)
def test_token_ids_may_be_any_sequence_of_integers(ids_model: Model, source: Source) -> None:
    assert one_among_good(ids_model, source) == ids_model.generate([GOOD])[0]


def test_all_inputs_may_be_one_array(ids_model: Model) -> None:
    rows: Any = np.array([[3, 4, 5], [6, 7, 8]])
    assert ids_model.generate(rows) == ids_model.generate([[3, 4, 5], [6, 7, 8]])


@pytest.mark.parametrize(
    "source", [[], (), np.array([], np.int64), np.zeros(0), np.zeros((0, 3), np.int64)], ids=repr
)
def test_no_tokens_give_an_empty_result(ids_model: Model, source: Source) -> None:
    result = one_among_good(ids_model, source)
    assert result == Result(None, (), 0.0, "empty", None)
    assert list(ids_model.stream(source)) == []


@pytest.mark.parametrize("bad", [17, -1, 10**6, 2**31, 2**63 - 1, -(2**63), 2**70])
def test_an_id_outside_the_vocabulary_is_named(ids_model: Model, bad: int) -> None:
    expected = f"expected token ids in [0, 17), found {bad}"
    assert rejection(ids_model, [3, bad, 4]) == expected
    assert rejection(ids_model, np.array([bad])) == expected


@pytest.mark.parametrize(
    "source",
    [
        [1.0, 2.0],
        np.array([1.5]),
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        np.zeros((1, 3), np.int64),
        [True, False],
        ["a", "b"],
        b"abc",
        [None],
        None,
        5,
        {3: 4},
        [[]] * 2 + [[1]],
    ],
    ids=repr,
)
def test_anything_but_a_list_of_ids_is_rejected(ids_model: Model, source: Any) -> None:
    assert "expected a text or a" in rejection(ids_model, source)


def test_a_source_longer_than_the_positions_is_rejected(ids_model: Model) -> None:
    assert rejection(ids_model, [3] * 34) == (
        "source has 34 tokens, expected at most 33, the positions of this model; truncate=True "
        "(--truncate) cuts it"
    )
    assert one_among_good(ids_model, [3] * 33).error is None


def test_text_for_a_bundle_without_tokenizers_is_rejected(ids_model: Model) -> None:
    assert rejection(ids_model, "abc") == "this bundle has no tokenizers: expected token ids"


def test_a_text_gives_the_result_of_its_tokens(text_model: Model) -> None:
    assert text_model.generate(["abz"]) == text_model.generate([[3, 4, 28, 2]])
    assert text_model.tokenize("abz") == [3, 4, 28, 2]


def test_text_and_ids_may_be_mixed(text_model: Model) -> None:
    texts = ["dragoman", "a", "interpreter"]
    mixed: list[Source] = ["dragoman", [3, 2], "interpreter"]
    assert text_model.generate(mixed) == text_model.generate(texts)


@pytest.mark.parametrize("text", ["", " ", "\n", "\t \n"])
def test_an_empty_line_gives_an_empty_result(text_model: Model, text: str) -> None:
    assert one_among_good(text_model, text) == Result("", (), 0.0, "empty", None)
    assert list(text_model.stream(text)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [("a1b?", "'1', '?'"), ("caf\udce9", r"'\udce9'"), ("\ud83d", r"'\ud83d'"), ("\0", r"'\x00'")],
)
def test_unknown_symbols_and_broken_bytes_are_named(
    text_model: Model, text: str, named: str
) -> None:
    """Bytes that are not UTF-8 reach Python as lone surrogates."""
    assert rejection(text_model, text) == f"unknown to this model: {named}"


def test_a_text_of_a_million_characters_is_rejected(text_model: Model) -> None:
    known, unknown, last = text_model.generate(["a" * 1_000_000, "1" * 1_000_000, "abc"])
    assert (known.finish_reason, unknown.finish_reason) == ("rejected", "rejected")
    assert known.error == (
        "source has at least 2368 tokens, expected at most 40, the positions of this model; "
        "truncate=True (--truncate) cuts it"
    )
    assert unknown.error == "unknown to this model: '1'"
    assert last == text_model.generate(["abc"])[0]


def test_one_text_in_place_of_a_list_is_an_error(text_model: Model) -> None:
    with pytest.raises(DragomanError, match="put it in a list"):
        text_model.generate("abc")


def test_no_inputs_give_no_results(text_model: Model) -> None:
    assert text_model.generate([]) == []


def test_all_inputs_may_be_bad(text_model: Model) -> None:
    results = text_model.generate(["", "?", [99], "a" * 99])
    assert [r.finish_reason for r in results] == ["empty", "rejected", "rejected", "rejected"]


def test_an_option_out_of_range_is_an_error_before_decoding(text_model: Model) -> None:
    wrong: list[dict[str, Any]]
    wrong = [{"min_new_tokens": -1}, {"max_batch_size": 0}, {"max_new_tokens": 25}]
    for options in wrong:
        with pytest.raises(DragomanError, match=next(iter(options))):
            text_model.generate(["abc"], **options)
        with pytest.raises(DragomanError, match=next(iter(options))):
            text_model.stream("abc", **options)
