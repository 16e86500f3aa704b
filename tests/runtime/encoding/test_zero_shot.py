"""Texts are classified by any labels, as the pipeline of transformers does it."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from dragoman.runtime import AbilityError, Classification, DragomanError
from dragoman.runtime.arguments import CancelError
from dragoman.runtime.encoding import front_end
from dragoman.runtime.encoding.tasks import Outputs

from .conftest import POSITIONS, Case, Make, transformers

TEXTS = ["The man eats food.", "paris", " ", "Paris\tis in France.", " a  b ", "éa☃", "[SEP] z."]
LABELS = ["food", "paris", "the man", "a {b}", "Q", "eats, is"]


def labelled(*labels: str, **more: Any) -> dict[str, Any]:
    """The settings of a model with labels in this order."""
    by_number = dict(enumerate(labels))
    return {
        "id2label": by_number,
        "label2id": {label: number for number, label in by_number.items()},
    } | more


THREE = labelled("CONTRADICTION", "neutral", "Entailment")
KINDS = {
    "three labels": THREE,
    "entailment first": labelled("entailed", "neutral", "contradicted"),
    "entailment in the middle": labelled("contradiction", "entail", "neutral"),
    "two labels": labelled("entailment", "not_entailment"),
    "multi-label": labelled("no", "entailment", problem_type="multi_label_classification"),
}


def pipeline_of(case: Case) -> Any:
    case.tokenizer.model_max_length = POSITIONS
    return transformers.pipeline(
        "zero-shot-classification", model=case.theirs, tokenizer=case.tokenizer, device="cpu"
    )


def assert_same(found: Sequence[Classification], expected: Sequence[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for own, their in zip(found, expected, strict=True):
        assert own.error is None
        scores = dict(zip(their["labels"], their["scores"], strict=True))
        assert {each.label: each.score for each in own.labels} == pytest.approx(scores, abs=1e-5)
        assert [each.score for each in own.labels] == pytest.approx(their["scores"], abs=1e-5)
        assert own.label == own.labels[0].label


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_those_of_transformers(make: Make, kind: str, multi_label: bool) -> None:
    case = make("ForSequenceClassification", **KINDS[kind])
    theirs = pipeline_of(case)
    for template in ("This example is {}.", "{}", "the {{}} of {} is {{a}}"):
        options: dict[str, Any] = {"hypothesis_template": template, "multi_label": multi_label}
        for labels in (LABELS, LABELS[:2], ["food"]):
            found = case.ours.classify_zero_shot(TEXTS, labels, truncate=True, **options)
            assert_same(found, theirs(TEXTS, labels, **options))
    assert case.ours.classify_zero_shot([], LABELS) == []


def test_only_the_text_is_cut(make: Make) -> None:
    case = make("ForSequenceClassification", **THREE)
    texts = ["the man " * 20, "food", "paris is in france . " * 9]
    found = case.ours.classify_zero_shot(texts, LABELS, truncate=True)
    assert_same(found, pipeline_of(case)(texts, LABELS))
    assert [one.truncated for one in found] == [True, False, True]
    first, second, third = case.ours.classify_zero_shot(texts, LABELS)
    assert first.labels == third.labels == () and "truncate=True" in str(first.error)
    assert second == found[1]
    long = "the " * POSITIONS
    (none,) = case.ours.classify_zero_shot(["food"], ["a", long], truncate=True)
    assert str(none.error).startswith("the hypothesis has ")
    assert str(none.error).endswith(" expected at most 20: only the text is cut")


def test_many_texts_are_classified_in_parts(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make("ForSequenceClassification", **THREE).ours
    texts = [f"{text[:9]} {number}" for number in range(4) for text in TEXTS]
    expected = ours.classify_zero_shot(texts, LABELS, hypothesis_template="a {}")
    assert all(one.error is None for one in expected)
    monkeypatch.setattr(front_end, "MAX_PAIRS", 13)  # two texts at a time, of six labels each
    assert ours.classify_zero_shot(texts, LABELS, hypothesis_template="a {}") == expected
    alone = [
        ours.classify_zero_shot([text], LABELS, hypothesis_template="a {}")[0] for text in texts
    ]
    assert alone == expected


def test_a_call_that_stops_holds_whole_results(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make("ForSequenceClassification", **THREE).ours
    expected = ours.classify_zero_shot(TEXTS, LABELS, hypothesis_template="{}")
    monkeypatch.setattr(front_end, "MAX_PAIRS", len(LABELS))
    cancel, read, reads = Event(), Outputs.read, []

    def counted(self: Outputs, *args: Any) -> Any:
        reads.append(args)
        if len(reads) == 3 * len(LABELS):  # the third text
            cancel.set()
        return read(self, *args)

    monkeypatch.setattr(Outputs, "read", counted)
    with pytest.raises(CancelError) as stopped:
        ours.classify_zero_shot(TEXTS, LABELS, hypothesis_template="{}", cancel=cancel)
    assert stopped.value.finished == dict(enumerate(expected[:3]))


def test_an_empty_text_has_probabilities(make: Make) -> None:
    """The pipeline refuses it; the tokens are those of a text without any."""
    ours = make("ForSequenceClassification", **THREE).ours
    empty, blank = ours.classify_zero_shot(["", " "], LABELS)
    assert empty == blank and empty.error is None


def test_texts_that_cannot_be_read_do_not_affect_others(make: Make) -> None:
    ours = make("ForSequenceClassification", **THREE).ours
    expected = ours.classify_zero_shot(["food", "paris"], LABELS)
    texts: list[Any] = ["food", 3, ["a", "b"], "\udcff", [5, 6], "paris"]
    found = ours.classify_zero_shot(texts, LABELS)
    assert [found[0], found[5]] == expected
    errors = [one.error for one in found[1:5]]
    assert errors[0] == "expected a text, found 3"
    assert str(errors[1]).startswith("expected a text, found ['a', 'b']")
    assert "lone surrogate" in str(errors[2])
    assert errors[3] == "expected a text, found [5, 6]"


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no labels": ([], {}, "labels: expected 1 to 1,000 labels, found 0"),
    "too many labels": (
        [f"{n}" for n in range(1001)],
        {},
        "labels: expected 1 to 1,000 labels, found 1,001",
    ),
    "an empty label": (["a", " "], {}, "labels: expected texts, none empty, found ' '"),
    "a number": (["a", 3], {}, "labels: expected texts, none empty, found 3"),
    "a label twice": (["a", "b", "a"], {}, "labels: expected each label once, found 'a' twice"),
    "one text": ("food", {}, "labels: expected a list of texts, found 'food'"),
    "no list": ({"a": 1}, {}, "labels: expected a list of texts, found"),
    "multi_label": (["a"], {"multi_label": 1}, "multi_label: expected true or false, found 1"),
    "a long label": (
        ["a", "b" * 1001],
        {},
        "labels: expected at most 1,000 characters, found 1,001",
    ),
    "a long template": (
        ["a"],
        {"hypothesis_template": "{}" + "b" * 10**6},
        "hypothesis_template: expected at most 1,000 characters, found 1,000,002",
    ),
    **{
        f"template {template!r}": (
            ["a"],
            {"hypothesis_template": template},
            "hypothesis_template: expected a text with one {}, where the label goes, found",
        )
        for template in ("", "no place", "{", "{} {}", "{0}", "{x}", "{:>9}", "{!r}", "{{}}", None)
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_labels_and_templates(make: Make, case: str) -> None:
    labels, options, message = BAD[case]
    ours = make("ForSequenceClassification", **THREE).ours
    with pytest.raises(DragomanError) as raised:
        ours.classify_zero_shot(["food"], labels, **options)
    assert str(raised.value).startswith(message)


def test_models_without_entailment(make: Make) -> None:
    for labels in (("positive", "negative"), ("entailment",)):
        ours = make("ForSequenceClassification", **labelled(*labels)).ours
        with pytest.raises(AbilityError, match="expected a model of natural language inference"):
            ours.classify_zero_shot(["food"], ["a"])
    with pytest.raises(AbilityError, match=r"use model.encode, model.hidden_states or dragoman"):
        make("Model").ours.classify_zero_shot(["food"], ["a"])
    with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
        make("ForSequenceClassification", **THREE).ours.classify_zero_shot("food", ["a"])
