"""Results of encoder-only models, compared with Hugging Face's pipelines on the same weights."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.runtime import AbilityError, DragomanError, RejectedError
from dragoman.runtime.encoding import front_end, tokenizer
from dragoman.runtime.encoding.results import shortened
from dragoman.runtime.model import parts_of
from dragoman.runtime.texts.codecs.library import LibraryTokenizer

from .conftest import POSITIONS, Case, Make

transformers: Any = importlib.import_module("transformers")

TEXTS = ["The man eats food.", "paris", "Paris is in France.", "", "a b c d e f g", "the the", "."]
PAIRS = [("the man", "is in Paris."), ("a", "b"), ("", "food food food"), ("eats", "")]


def test_vectors_are_the_means_of_hidden_states(make: Make) -> None:
    theirs, tokenizer, ours = make("Model")
    found = ours.encode(TEXTS)
    assert found.shape == (len(TEXTS), 24)
    assert found.dtype == np.float32
    for vector, states, text in zip(found, ours.hidden_states(TEXTS), TEXTS, strict=True):
        with torch.inference_mode():
            expected = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(states, expected, atol=1e-5)
        np.testing.assert_allclose(vector, expected.mean(0), atol=1e-5)


def test_the_first_dimensions(make: Make) -> None:
    """Of embeddings that are not normalized, and of those that are; without a warning, since no
    checkpoint states what it was trained for."""
    ours = make("Model").ours
    whole = ours.encode(TEXTS)
    np.testing.assert_array_equal(ours.encode(TEXTS, dimensions=5), whole[:, :5])
    np.testing.assert_array_equal(ours.encode(TEXTS, dimensions=24), whole)
    assert ours.encode([], dimensions=3).shape == (0, 3)
    for row in whole:
        unit = (row / np.linalg.norm(row)).astype(np.float32)
        np.testing.assert_allclose(shortened(unit, 5), row[:5] / np.linalg.norm(row[:5]), rtol=1e-5)
    with pytest.raises(RejectedError, match="dimensions: expected 1 to 24, found 25"):
        ours.encode(TEXTS, dimensions=25)
    with pytest.raises(DragomanError, match="dimensions: expected an integer of at least 1"):
        ours.encode(TEXTS, dimensions=0)


def test_no_texts(make: Make) -> None:
    assert make("Model").ours.encode([]).shape == (0, 24)


def test_company_changes_nothing(make: Make) -> None:
    """At fp32, to the last bits that sums in another order may change."""
    ours = make("Model").ours
    alone = np.concatenate([ours.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(ours.encode(TEXTS), alone, atol=1e-6)
    np.testing.assert_allclose(ours.encode(TEXTS[::-1])[::-1], alone, atol=1e-6)


LABELS = {
    "id2label": {0: "good", 1: "bad", 2: "ugly"},
    "label2id": {"good": 0, "bad": 1, "ugly": 2},
}


@pytest.mark.parametrize(
    "changes",
    [LABELS, LABELS | {"problem_type": "multi_label_classification"}],
    ids=["one label", "several"],
)
def test_classify(changes: dict[str, Any], make: Make) -> None:
    theirs, tokenizer, ours = make("ForSequenceClassification", **changes)
    pipeline = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer)
    sources: list[Any] = [*TEXTS, *PAIRS]
    results = ours.classify(sources)
    for source, result in zip(sources, results, strict=True):
        asked = source if isinstance(source, str) else {"text": source[0], "text_pair": source[1]}
        expected = pipeline(asked, top_k=None)
        assert [label.label for label in result.labels] == [e["label"] for e in expected]
        for label, other in zip(result.labels, expected, strict=True):
            assert label.score == pytest.approx(other["score"], abs=1e-5)
        assert (result.label, result.error) == (expected[0]["label"], None)


def test_one_label_alone_is_a_number(make: Make) -> None:
    theirs, tokenizer, ours = make("ForSequenceClassification", num_labels=1)
    (result,) = ours.classify(TEXTS[:1])
    with torch.inference_mode():
        expected = theirs(**tokenizer(TEXTS[0], return_tensors="pt")).logits.item()
    assert result.labels[0].score == pytest.approx(expected, abs=1e-5)


ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_tag(make: Make) -> None:
    by_number = dict(enumerate(ENTITIES))
    theirs, tokenizer, ours = make(
        "ForTokenClassification",
        id2label=by_number,
        label2id={label: number for number, label in by_number.items()},
    )
    first = transformers.pipeline(
        "token-classification", model=theirs, tokenizer=tokenizer, aggregation_strategy="first"
    )
    texts = [text for text in TEXTS if text]
    words = 0
    for text, result in zip(texts, ours.tag(texts), strict=True):
        expected = [(e["entity_group"], e["start"], e["end"]) for e in first(text)]
        assert [(tag.label, tag.start, tag.end) for tag in result.entities] == expected
        assert all(tag.text == text[tag.start : tag.end] for tag in result.words)
        assert "".join(tag.text or "" for tag in result.words) == text.replace(" ", "")
        words += len(result.words)
    assert words > len(expected)
    assert ours.tag([""])[0].words == ()


def test_fill(make: Make) -> None:
    theirs, tokenizer, ours = make("ForMaskedLM")
    pipeline = transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer)
    text = "The [MASK] eats food."
    (result,) = ours.fill([text], top=4)
    expected = pipeline(text, top_k=4)
    assert [c.token for c in result.masks[0]] == [e["token"] for e in expected]
    for candidate, other in zip(result.masks[0], expected, strict=True):
        assert candidate.probability == pytest.approx(other["score"], abs=1e-5)
    assert result.text is not None and result.text.lower() == expected[0]["sequence"]
    (several,) = ours.fill(["[MASK] eats [MASK]"], top=2)
    expected = pipeline("[MASK] eats [MASK]", top_k=2)
    assert [[c.token for c in mask] for mask in several.masks] == [
        [e["token"] for e in mask] for mask in expected
    ]
    (without,) = ours.fill(["the man"])
    assert without.error == "expected a mask ([MASK]), found none"


def test_a_filled_text_is_one_text(make: Make) -> None:
    """The rest of a word follows the word; masks side by side follow each other."""
    theirs, tokenizer, ours = make("ForMaskedLM")
    pipeline = transformers.pipeline("fill-mask", model=theirs, tokenizer=tokenizer)
    words = ["the", "man", "food", "paris", "is", "in", "eating", "w"]
    texts = [f"{one} [MASK] {other}" for one in words for other in words]
    joined = 0
    for text, result in zip(texts, ours.fill(texts), strict=True):
        (best, *_) = pipeline(text)
        assert result.text == best["sequence"]
        joined += best["sequence"].count(" ") < 2
    assert joined
    (several,) = ours.fill(["the [MASK] [MASK] food"])
    ids = tokenizer("the [MASK] [MASK] food")["input_ids"]
    for place, candidates in zip((2, 3), several.masks, strict=True):
        ids[place] = candidates[0].token
    assert several.text == tokenizer.decode(ids, skip_special_tokens=True)


def best_answer(case: Case, pair: tuple[str, str], longest: int, **cut: Any) -> Any:
    """Probability, start and end, as the pipeline of transformers 4 has them.

    It tries every beginning and end in every window. [CLS] counts as a place of the answer, that
    there is none, and is no answer. The library splits the context.
    """
    encoded = case.tokenizer(
        *pair, padding=True, return_tensors="pt", return_offsets_mapping=True, **cut
    )
    spans = encoded.pop("offset_mapping").tolist()
    encoded.pop("overflow_to_sample_mapping", None)
    with torch.inference_mode():
        found = case.theirs(**encoded)
    answers = []
    for row, own in enumerate(spans):
        context = [i for i, segment in enumerate(encoded.sequence_ids(row)) if segment == 1]
        begins = found.start_logits[row, [0, *context]].softmax(0)[1:].tolist()
        ends = found.end_logits[row, [0, *context]].softmax(0)[1:].tolist()
        answers += [
            (begins[i] * ends[j], own[context[i]][0], own[context[j]][1])
            for i in range(len(context))
            for j in range(i, min(i + longest, len(context)))
        ]
    return max(answers)


def assert_best(case: Case, result: Any, pair: tuple[str, str], longest: int, **cut: Any) -> None:
    best, start, end = best_answer(case, pair, longest, **cut)
    assert result.error is None and not result.truncated
    assert (result.start, result.end, result.text) == (start, end, pair[1][start:end])
    assert result.probability == pytest.approx(best, abs=1e-5)


def test_answer(make: Make) -> None:
    case = make("ForQuestionAnswering")
    pairs = [("Paris is in", "the man is in France. a food"), ("a", "b"), ("the man eats", "food")]
    for longest in (1, 2, 15, 10**30):
        for pair, result in zip(pairs, case.ours.answer(pairs, longest=longest), strict=True):
            assert_best(case, result, pair, longest)


@pytest.mark.parametrize("stride", [1, 5, 12])
def test_answers_from_windows(stride: int, make: Make) -> None:
    """Of contexts of one window, of two, and of many; the order and the others change nothing."""
    case = make("ForQuestionAnswering")
    words = ["paris", "the", "eats", "in", "is", "man", "food", *"abcdefghijklmnopqrstuvwx"]
    choice = np.random.default_rng(0).choice  # no window is like another
    contexts = [" ".join(choice(words, count)) for count in (3, 17, 25, 75)]
    pairs = [("who eats", context) for context in contexts] + [("is the man in", contexts[-1])]
    cut = {"truncation": "only_second", "max_length": POSITIONS, "stride": stride}
    for longest in (1, 4, 15):
        found = case.ours.answer(pairs, longest=longest, stride=stride)
        for pair, result in zip(pairs, found, strict=True):
            assert_best(case, result, pair, longest, return_overflowing_tokens=True, **cut)
        assert case.ours.answer(pairs[::-1], longest=longest, stride=stride) == found[::-1]
        assert case.ours.answer(pairs[-1:], longest=longest, stride=stride) == found[-1:]


def test_windows_that_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make("ForQuestionAnswering").ours
    long = "the man is " * 30
    pairs: list[Any] = [
        ("a b", long),
        ("a", ""),
        3,
        ("a", "\udcff" + long),
        ("a", "b"),
        ("a", long),
    ]
    wide = ours.answer(pairs, stride=19)
    room = "expected at most 1: only the context is cut, into windows that share 19 tokens"
    assert wide[0].error == f"the question has 2 tokens, {room}"
    assert wide[1].error == "expected a context with an answer, found an empty one"
    assert wide[2].error == "expected a pair of question and context, both texts"
    assert "lone surrogate" in (wide[3].error or "")
    assert wide[4].text == "b" and wide[5].text
    monkeypatch.setattr(tokenizer, "MOST_WINDOWS", 70)
    monkeypatch.setattr(front_end, "MAX_PAIRS", 1)  # each source by itself
    (one,) = ours.answer(pairs[-1:], stride=19)
    shared = "71 windows that share 19: expected at most 70"
    assert one.error == f"the context has 90 tokens, {shared}"
    assert ours.answer(pairs[:5], stride=19) == wide[:5]
    encoded: list[int] = []
    encode = LibraryTokenizer.encode

    def spy(reader: Any, text: str, *rest: Any, **options: Any) -> Any:
        encoded.append(len(text))
        return encode(reader, text, *rest, **options)

    monkeypatch.setattr(LibraryTokenizer, "encode", spy)
    (one,) = ours.answer([("a", "the man is " * 100_000)], stride=19)
    assert re.fullmatch(
        r"the context has at least \d+ tokens: expected at most 89, of 70 windows that share 19",
        one.error or "",
    )
    assert max(encoded) < 10_000  # not the whole context
    for stride in (0, 1.5, True):
        with pytest.raises(DragomanError, match="stride: expected an integer of at least 1"):
            ours.answer(pairs, stride=stride)  # type: ignore[arg-type]


def test_an_empty_context_has_no_answer(make: Make) -> None:
    empty, other = make("ForQuestionAnswering").ours.answer([("a", ""), ("a", "b")])
    assert empty.error == "expected a context with an answer, found an empty one"
    assert other.text == "b"


def test_a_question_is_not_cut(make: Make) -> None:
    """Beside 3 special tokens and one of the context, 20 fit in."""
    _, tokenizer, ours = make("ForQuestionAnswering")
    fits, one_more, context = " ".join("a" * 20), " ".join("a" * 21), "b c d e"
    expected = tokenizer(fits, context, truncation="only_second", max_length=POSITIONS)
    tokens = parts_of(ours).encoder.tokenize((fits, context), truncate=True)
    assert (tokens.ids, tokens.truncated) == (expected["input_ids"], True)
    pairs = [(fits, context), (one_more, context), ("a " * 100_000, context), ("a", "b")]
    found = ours.answer(pairs, truncate=True)
    assert (found[0].text, found[0].error, found[3].text) == ("b", None, "b")
    ending = " tokens, expected at most 20: only the context is cut"
    assert found[1].error == f"the question has 21{ending}"
    assert re.fullmatch(rf"the question has at least \d+{ending}", found[2].error or "")


LONG = "the man eats food " * 9


def test_texts_that_are_too_long(make: Make) -> None:
    ours = make("Model").ours
    with pytest.raises(
        RejectedError, match=r"text 1: text has .* tokens, expected at most 24; trunc"
    ):
        ours.encode(["a", LONG])
    with pytest.warns(UserWarning, match="1 of 2 texts were truncated"):
        cut = ours.encode(["a", LONG], truncate=True)
    with pytest.raises(RejectedError, match=r"^text 1: .*--truncate\) leaves out the rest"):
        ours.hidden_states(["a", LONG])
    with pytest.warns(UserWarning, match="1 of 2 texts were truncated"):
        states = ours.hidden_states(["a", LONG], truncate=True)[1]
    assert len(states) == POSITIONS
    with pytest.raises(RejectedError, match=f"expected at most {POSITIONS}$"):
        ours.tokenize(LONG)  # it has no such argument
    np.testing.assert_allclose(cut[1], states.mean(0), atol=1e-5)


def test_only_the_text_concerned_is_rejected(make: Make) -> None:
    ours = make("ForSequenceClassification", **LABELS).ours
    texts: list[Any] = ["a", LONG, "\ud800", [0.5], [2, 99, 3], [], "b"]
    results = ours.classify(texts)
    errors = [result.error for result in results]
    assert (errors[0], errors[-1]) == (None, None)
    assert all(errors[1:-1])
    assert all(result.labels == () for result in results[1:-1])
    assert ours.classify(["a", "b"]) == [results[0], results[-1]]
    assert [r.truncated for r in ours.classify(["a", LONG], truncate=True)] == [False, True]


def test_token_ids_are_as_good_as_texts(make: Make) -> None:
    _, tokenizer, ours = make("Model")
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    assert [ours.tokenize(text) for text in TEXTS] == ids
    np.testing.assert_array_equal(ours.encode(ids), ours.encode(TEXTS))


def test_special_tokens_in_a_text(make: Make) -> None:
    """They are read as by transformers or, on request, as plain text; but masks are masks."""
    text = "a [SEP] b [MASK]"
    _, tokenizer, ours = make("Model")
    assert ours.tokenize(text) == tokenizer(text).input_ids
    split = ours.tokenize(text, split_special_tokens=True)
    assert split == tokenizer(text, split_special_tokens=True).input_ids
    assert not np.array_equal(ours.encode([text]), ours.encode([text], split_special_tokens=True))
    _, _, filling = make("ForMaskedLM")
    assert filling.tokenize(text) == tokenizer(text).input_ids
    split = filling.tokenize(text, split_special_tokens=True)
    assert split.count(tokenizer.mask_token_id) == 1 == split.count(tokenizer.sep_token_id)
    (result,) = filling.fill([text], split_special_tokens=True)
    assert result.error is None and len(result.masks) == 1


def test_a_model_says_what_it_does(make: Make) -> None:
    vectors, labels = make("Model").ours, make("ForSequenceClassification", **LABELS).ours
    with pytest.raises(
        AbilityError,
        match=r"generate: bert is a model that computes embeddings: use model\.encode, "
        r"model\.hidden_states or dragoman encode",
    ):
        vectors.generate(["a"])
    for call in (
        lambda: vectors.stream("a"),
        lambda: vectors.score([("a", "b")]),
        lambda: vectors.classify(["a"]),
        lambda: vectors.detokenize([1]),
        lambda: labels.encode(["a"]),
        lambda: labels.fill(["a"]),
    ):
        with pytest.raises(AbilityError):
            call()


def test_mistakes(make: Make) -> None:
    ours = make("ForMaskedLM").ours
    with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
        ours.fill("[MASK]")
    with pytest.raises(DragomanError, match="top: expected an integer of at least 1, found 0"):
        ours.fill(["[MASK]"], top=0)
