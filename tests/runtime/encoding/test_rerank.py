"""Documents are ranked as Hugging Face's model with one label scores each pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dragoman.runtime import AbilityError, DragomanError, RankedDocument, RejectedError

from .conftest import Case, Make

QUERY = "who eats food"
DOCUMENTS = [
    *(
        "The man eats.",
        "paris",
        "Paris is in France.",
        "a",
        "food food food",
        "z.",
        "the man is in",
    ),
    "paris",
]
ONE_LABEL: dict[str, Any] = {"id2label": {0: "relevance"}, "label2id": {"relevance": 0}}


def expected(case: Case, documents: list[str]) -> list[float]:
    pairs = case.tokenizer([QUERY] * len(documents), documents, padding=True, return_tensors="pt")
    with torch.inference_mode():
        scores: list[float] = case.theirs(**pairs).logits[:, 0].tolist()
    return scores


def test_documents_are_in_the_order_of_their_scores(make: Make) -> None:
    case = make("ForSequenceClassification", **ONE_LABEL)
    scores = expected(case, DOCUMENTS)
    found = case.ours.rerank(QUERY, DOCUMENTS)
    assert [document.index for document in found] == np.argsort(
        -np.array(scores).round(5), kind="stable"
    ).tolist()
    for document in found:
        assert document.score == pytest.approx(scores[document.index], abs=1e-5)
        assert document.error is None and not document.truncated
    # Equal documents are in the order in which they were given.
    order = [document.index for document in found]
    assert order.index(7) == order.index(1) + 1
    assert case.ours.rerank(QUERY, DOCUMENTS, top=3) == found[:3]
    assert case.ours.rerank(QUERY, []) == []


def test_long_documents_are_rejected_or_cut(make: Make) -> None:
    case = make("ForSequenceClassification", **ONE_LABEL)
    documents = ["a", "the man " * 20, "food"]
    *good, bad = case.ours.rerank(QUERY, documents)
    assert {document.index for document in good} == {0, 2}
    assert bad.index == 1 and bad.score is None and "expected at most 24" in (bad.error or "")
    cut = case.ours.rerank(QUERY, documents, truncate=True)
    (long,) = [document for document in cut if document.index == 1]
    assert long.truncated and long.error is None and isinstance(long.score, float)
    unread = case.ours.rerank(QUERY, ["a", 5])  # type: ignore[list-item]
    assert unread[1] == RankedDocument(1, None, unread[1].error)


def test_models_and_arguments_that_do_not_fit(make: Make) -> None:
    several = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    with pytest.raises(AbilityError, match="expected a model with one label, the relevance, fo"):
        make("ForSequenceClassification", **several).ours.rerank(QUERY, DOCUMENTS)
    with pytest.raises(AbilityError, match=r"use model.encode, model.hidden_states or dragoman"):
        make("Model").ours.rerank(QUERY, DOCUMENTS)
    ours = make("ForSequenceClassification", **ONE_LABEL).ours
    with pytest.raises(RejectedError, match="query: expected a text, found 3"):
        ours.rerank(3, DOCUMENTS)  # type: ignore[arg-type]
    for blank in ("", " \n\u3000"):
        with pytest.raises(RejectedError) as caught:
            ours.rerank(blank, DOCUMENTS)
        assert str(caught.value) == f"query: expected a text, found {blank!r}"
    with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
        ours.rerank(QUERY, "paris")
    with pytest.raises(DragomanError, match="top: expected an integer of at least 1, found 0"):
        ours.rerank(QUERY, DOCUMENTS, top=0)
