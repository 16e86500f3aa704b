"""Options and arguments of the wrong kind: one error that says what was expected and found."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions, Model, RejectedError, load

WRONG: dict[str, list[Any]] = {
    "max_new_tokens": ["5", b"5", 5.0, True, [5], np.array(5), np.array([5, 6]), np.float32(5)],
    "max_new_tokens_per_source_token": ["2", True, None, [2], 2j, Decimal(2), np.array([2.0, 3.0])],
    "min_new_tokens": ["0", False, 1.0, np.array([1, 2]), {}],
    "split": [1, 0, None, "yes", np.array([True, False])],
    "split_language": [b"de", 1, True, ["de"]],
    "num_beams": ["4", 4.0, True, 0, -1, [4]],
    "num_return_sequences": ["1", 1.0, True, None, 0],
    "length_penalty": ["1", True, math.nan, math.inf, 51, [1.0]],
    "early_stopping": ["always", "", 1, 0, [True]],
    "do_sample": [1, 0, "yes", [True]],
    "temperature": ["1", -1, math.nan, math.inf, True],
    "top_k": ["5", 5.0, -1, True],
    "top_p": ["1", 0, 1.1, -0.1, math.nan, True],
    "min_p": ["0", 1.1, -0.1, math.nan, False],
    "seed": ["7", 7.0, -1, 1 << 64, True],
    "alternatives": ["3", 3.0, None, -1, True],
    "prefix": [5, b"abc", ["abc"], [1.0], {1}],
    "must_contain": ["abc", 5, [5], [b"abc"], [["abc"]], None],
    "must_not_contain": ["abc", 5, [5], [b"abc"], [["abc"]], None],
    "max_batch_size": ["auto", 8.0, True, np.array([]), {8}],
    "max_batch_tokens": ["many", 4096.0, False, np.array([[1]])],
    "end_token_id": [2.0, "", b"a", [2.0], [[2]], [None], True, np.array([[2]])],
    "repetition_penalty": ["2", 0, -1.5, math.nan, math.inf, True],
    "no_repeat_ngram_size": ["2", 2.0, -1, True],
    "renormalize_logits": [1, "yes", []],
    "truncate": [1, None, "yes"],
    "shortlist": [1, None, "yes"],
    "strict_audio": [1, None, "yes"],
    "vad": [1, 0, "yes"],
    "word_timestamps": [1, None, "yes"],
    "fallback": [1, 0, "yes"],
    "compression_ratio_threshold": ["2.4", True, math.nan, math.inf, [2.4]],
    "log_probability_threshold": ["-1", False, math.nan, -math.inf],
    "no_speech_threshold": ["0.6", True, math.nan, -0.1, 1.1],
    "initial_prompt": [5, b"Gwendolen", ["Gwendolen"], np.array([1, 2])],
    "hotwords": [5, b"Gwendolen", ["Gwendolen"], np.array([1, 2])],
    "cut_at_silence": [1, None, "yes"],
    "condition_on_previous_text": [1, 0, "yes"],
    "skip_special_tokens": [1, None, "yes"],
    "split_special_tokens": [1, "yes", []],
    "source_language": [5, True, b"de", ["de"], np.array(["de", "en"]), Path("de")],
    "target_language": [5, 0, b"de", ["de"], np.array([]), {}],
    "language": [5, 0, b"en", ["en"], np.array([1, 2]), {}],
    "task": [5, 0, b"translate", ["translate"], np.array([]), {}],
    "timestamps": [1, 0, "yes", "", [], [True], np.array([True, False]), np.array(True)],
}
EXPECTED = {
    "max_new_tokens": "an integer of at least 1",
    "max_new_tokens_per_source_token": "a number of more than 0",
    "min_new_tokens": "an integer of at least 0",
    "num_beams": "an integer of at least 1",
    "num_return_sequences": "an integer of at least 1",
    "length_penalty": "a number from -50 to 50",
    "early_stopping": 'True, False, "never" or None',
    "do_sample": "True, False or None",
    "end_token_id": "a token id, the token as the vocabulary spells it, or a list of them",
    "repetition_penalty": "a number over 0, in the range of float32",
    "no_repeat_ngram_size": "an integer of at least 0",
    "renormalize_logits": "True, False or None",
    "truncate": "True or False",
    "shortlist": "True or False",
    "strict_audio": "True or False",
    "vad": "True, False or None",
    "word_timestamps": "True or False",
    "fallback": "True, False or None",
    "compression_ratio_threshold": "a number",
    "log_probability_threshold": "a number",
    "no_speech_threshold": "a number from 0 to 1",
    "cut_at_silence": "True or False",
    "condition_on_previous_text": "True, False or None",
    "skip_special_tokens": "True or False",
    "split": "True or False",
    "split_special_tokens": "True, False or None",
    "temperature": "a number in [0, inf)",
    "top_k": "an integer of at least 0",
    "top_p": "a number of more than 0 and at most 1",
    "min_p": "a number from 0 to 1",
    "seed": "an integer of at least 0 and of at most 64 bits",
    "alternatives": "an integer of at least 0",
    "prefix": "a text or a list of token ids",
    "must_contain": "a list of texts or of lists of token ids",
    "must_not_contain": "a list of texts or of lists of token ids",
    "max_batch_size": "an integer of at least 1",
    "max_batch_tokens": "an integer of at least 1",
    "timestamps": "True, False or None",
}


def message_of(call: Any) -> str:
    with pytest.raises(DragomanError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"), [(name, v) for name, values in WRONG.items() for v in values], ids=repr
)
def test_an_option_of_another_kind_is_named(option: str, value: Any, text_model: Model) -> None:
    found = " ".join(repr(value).split())
    expected = f"{option}: expected {EXPECTED.get(option, 'a text')}, found {found}"
    changes: Any = {option: value}
    assert message_of(lambda: GenerationOptions(**changes)) == expected
    assert message_of(lambda: text_model.generate(["abc"], **changes)) == expected
    assert message_of(lambda: text_model.stream("abc", **changes)) == expected


def test_every_option_is_tested() -> None:
    assert sorted(WRONG) == sorted(GenerationOptions.__dataclass_fields__)


LONG: list[Any] = [
    *(10**4000, 10**5000, -(10**5000), "x" * 100_000, "a b " * 25_000, "\0" * 10_000, b"x" * 10**5),
    *([10**5000], [10**4000] * 3, ["x" * 10**4] * 3, {"x" * 10**5: 1}, [[["x" * 10**5]]]),
    *("\ud800" * 1000, [1] * 5000, np.ones(5000, np.int64)),
]


@pytest.mark.parametrize("value", LONG, ids=range(len(LONG)))
def test_no_error_echoes_a_long_value(
    text_model: Model, text_case: tuple[Any, Path], value: Any
) -> None:
    """Options, inputs, pairs, paths."""
    unknown: dict[str, Any] = {"x" * 100_000: 1}
    calls: list[Callable[[], Any]] = [
        *(partial(text_model.generate, ["abc"], **{option: value}) for option in WRONG),
        *(partial(text_model.stream, "abc", **{option: value}) for option in WRONG),
        *(partial(call, value) for call in (text_model.generate, text_model.stream, load)),
        *(partial(text_model.generate, [value]), partial(text_model.tokenize, value)),
        *(
            partial(call, pairs)
            for call in (text_model.score, text_model.align)
            for pairs in (value, [value], [("abc", value)])
        ),
        *(partial(load, text_case[1], **{option: value}) for option in ("threads", "backend")),
        partial(text_model.generate, ["abc"], **unknown),
    ]
    for call in calls:
        try:
            results = list(call())
        except DragomanError as error:
            assert len(str(error)) <= 1100
        else:
            assert all(len(getattr(result, "error", None) or "") <= 1000 for result in results)


def test_a_long_list_of_problems_is_counted() -> None:
    problems = [f"missing field {number}" for number in range(10_000)]
    error = DragomanError("config.json", problems)
    assert error.problems == problems
    assert str(error).startswith("config.json: missing field 0; missing field 1; ")
    listed, _, rest = str(error).rpartition("; and ")
    assert len(str(error)) < 2100
    assert rest == f"{10_000 - listed.count('missing')} more"


def test_long_names_are_not_shown_whole() -> None:
    unknown: dict[str, Any] = {"x" * 100_000: 1}
    message = message_of(lambda: GenerationOptions().replace(**unknown))
    assert message.startswith("unknown option xxx") and "x" * 200 not in message


def test_a_long_value_is_not_shown_whole() -> None:
    long: Any = ["x" * 1000]
    message = message_of(lambda: GenerationOptions(language=long))
    assert message.endswith("xxx...") and len(message) < 110


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"max_new_tokens": np.int64(3)}, {"max_new_tokens": 3}),
        ({"min_new_tokens": np.uint8(2)}, {"min_new_tokens": 2}),
        ({"max_batch_size": np.int32(1)}, {"max_batch_size": 1}),
        ({"max_batch_tokens": np.int16(9)}, {"max_batch_tokens": 9}),
        ({"max_new_tokens_per_source_token": np.int64(2)}, {"max_new_tokens": 8}),
        ({"max_new_tokens_per_source_token": np.float32(0.5)}, {"max_new_tokens": 2}),
        ({"max_new_tokens_per_source_token": Fraction(3, 2)}, {"max_new_tokens": 6}),
        ({"max_new_tokens_per_source_token": 10**400}, {}),
        ({"timestamps": np.False_}, {}),
    ],
    ids=repr,
)
def test_numbers_of_other_libraries_are_numbers(options: Any, same: Any, text_model: Model) -> None:
    """abc has four tokens."""
    assert text_model.generate(["abc"], **options) == text_model.generate(["abc"], **same)


@pytest.mark.parametrize("option", ["language", "task"])
def test_an_empty_text_is_not_left_out(option: str, text_model: Model) -> None:
    empty: Any = {option: ""}
    assert "are for speech models" in message_of(lambda: text_model.generate(["abc"], **empty))


@pytest.mark.parametrize("options", ["x", 5, {}, [3], {"max_new_tokens": 3}])
def test_options_are_options(options: Any, text_model: Model) -> None:
    expected = f"options: expected GenerationOptions, found {options!r}"
    one = expected if options != [3] else expected.replace("[3]", "3")
    assert message_of(lambda: text_model.generate(["abc"], options)) == one
    assert message_of(lambda: text_model.stream("abc", options)) == expected


@pytest.mark.parametrize("count", [0, 1, 3])
def test_options_are_as_many_as_sources(count: int, text_model: Model) -> None:
    options = [GenerationOptions()] * count
    assert message_of(lambda: text_model.generate(["abc", "b"], options)) == (
        f"options: expected one, or one for each of 2 sources, found {count}"
    )


def test_sources_have_options_of_their_own(text_model: Model) -> None:
    """Wrong ones reject their own source only."""
    single = [
        text_model.generate([source], max_new_tokens=most)[0]
        for source, most in (("abc", 2), ("dragoman", 5))
    ]
    options = [
        GenerationOptions(max_new_tokens=2),
        GenerationOptions(timestamps=True),
        GenerationOptions(max_new_tokens=5),
    ]
    first, rejected, last = text_model.generate(["abc", "b", "dragoman"], options)
    assert [first.tokens, last.tokens] == [result.tokens for result in single]
    assert rejected.finish_reason == "rejected"
    assert "are for speech models" in str(rejected.error)


@pytest.mark.parametrize("one", ["abc", "", b"abc", Path("abc.wav")], ids=repr)
def test_one_input_is_no_list(one: Any, text_model: Model) -> None:
    expected = "expected a list of inputs, found one: put it in a list"
    assert message_of(lambda: text_model.generate(one)) == expected


@pytest.mark.parametrize(
    "sources",
    [5, None, 1.5, True, {"abc": 1}, {"abc"}, object, iter(["abc"]), np.array(5), np.array("abc")],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_of_inputs(sources: Any, text_model: Model) -> None:
    message = message_of(lambda: text_model.generate(sources))
    assert message.startswith("expected a list of inputs, found ")
    assert repr(sources)[:20] in message


def test_lists_of_other_kinds_are_lists(text_model: Model) -> None:
    expected = text_model.generate(["abc", "b"])
    others: list[Any] = [("abc", "b"), np.array(["abc", "b"]), np.array(["abc", "b"], object)]
    assert [text_model.generate(other) for other in others] == [expected] * 3


@pytest.mark.parametrize("source", [5, None, b"abc", ["abc"], [None], 1.5, {}, object], ids=repr)
def test_one_input_among_good_ones_that_is_none(source: Any, text_model: Model) -> None:
    good, bad = text_model.generate(["abc", source])
    assert good == text_model.generate(["abc"])[0]
    assert bad.finish_reason == "rejected" and str(bad.error).startswith("expected a text or a")
    for call in (text_model.stream, text_model.tokenize):
        with pytest.raises(RejectedError) as caught:
            call(source)
        assert str(caught.value) == bad.error


@pytest.mark.parametrize("language", [5, ["de"], b"de"], ids=repr)
def test_the_language_to_tokenize_in_is_a_text(language: Any, text_model: Model) -> None:
    expected = f"source_language: expected a text, found {language!r}"
    assert message_of(lambda: text_model.tokenize("abc", language)) == expected


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (5, "expected a one-dimensional array of integer token ids, found 5"),
        (None, "expected a one-dimensional array of integer token ids, found None"),
        (b"x", "expected a one-dimensional array of integer token ids, found b'x'"),
        ("abc", "expected a one-dimensional array of integer token ids, found 'abc'"),
        ([3.5], "expected a one-dimensional array of integer token ids, found [3.5]"),
        ([True], "expected a one-dimensional array of integer token ids, found [True]"),
        ([[3]], "expected a one-dimensional array of integer token ids, found [[3]]"),
        ([[3], [3, 4]], "expected a list of token ids: "),
        ([-1], "expected token ids in [0, 23), found -1"),
        ([3, 23], "expected token ids in [0, 23), found 23"),
        ([2**40], "expected token ids in [0, 23), found 1099511627776"),
        ([2**64], "expected token ids in [0, 23), found 18446744073709551616"),
    ],
    ids=repr,
)
def test_detokenize_takes_token_ids(tokens: Any, message: str, text_model: Model) -> None:
    with pytest.raises(RejectedError) as caught:
        text_model.detokenize(tokens)
    assert message in str(caught.value)
    assert text_model.detokenize(np.array([3, 22])) == "w3 w22"
    assert text_model.detokenize([]) == ""


@pytest.mark.parametrize("threads", ["2", 2.0, True, [1], np.array([1, 2])], ids=repr)
def test_threads_are_an_integer(threads: Any, text_case: Any) -> None:
    expected = f"threads: expected an integer, found {threads!r}"
    assert message_of(lambda: load(text_case[1], threads=threads)) == expected


def test_threads_may_be_an_integer_of_numpy(text_case: Any, text_model: Model) -> None:
    threads: Any = np.int64(1)
    model = load(text_case[1], threads=threads)
    assert model.generate(["abc"]) == text_model.generate(["abc"])


@pytest.mark.parametrize("directory", [5, None, b"x", ["x"], 1.5], ids=repr)
def test_a_bundle_is_loaded_from_a_path(directory: Any) -> None:
    expected = f"expected the path of a bundle, found {directory!r}"
    assert message_of(lambda: load(directory)) == expected


@pytest.mark.parametrize("backend", [5, True, "", ["onnxruntime"]], ids=repr)
def test_a_backend_is_a_name(backend: Any, text_case: Any) -> None:
    message = message_of(lambda: load(text_case[1], backend=backend))
    assert message.startswith(f"unknown backend {backend!r}, expected one of: openvino, ")
