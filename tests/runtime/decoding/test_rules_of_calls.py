"""Options of calls that change the rules of the checkpoint, against the reference model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import DragomanError
from dragoman.reference_model import (
    GenerationConfig,
    Transformer,
    beam_search_uncached,
    greedy_uncached,
)
from dragoman.runtime import GenerationOptions, Model, Result

Pair = tuple[Transformer, Model]
RandomSources = Callable[..., list[list[int]]]

LIMIT = 12
RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "min_new_tokens": 4},
    {"end_token_ids": (4,)},
    {"end_token_ids": (9, 4, 12)},
    {"end_token_ids": ()},
    {"end_token_ids": (7,), "min_new_tokens": 3, "renormalize_logits": True},
    {"renormalize_logits": True, "no_repeat_ngram_size": 2},
]


def with_rules(reference: Transformer, **rules: Any) -> Transformer:
    reference.generation = GenerationConfig(**rules)
    return reference


@pytest.fixture
def case(pair: Pair) -> Any:
    """The pair; the reference model has its own settings afterwards."""
    reference, _ = pair
    own = reference.generation
    yield pair
    reference.generation = own


def options_of(rules: dict[str, Any], **more: Any) -> GenerationOptions:
    values = {"end_token_id" if n == "end_token_ids" else n: v for n, v in rules.items()}
    return GenerationOptions(max_new_tokens=LIMIT, **values, **more)


def whole(result: Result) -> list[int]:
    return [*result.tokens, *([] if result.end_token is None else [result.end_token])]


def test_greedy_outputs_are_the_oracle_s_under_the_rules(
    case: Pair, random_sources: RandomSources
) -> None:
    """All in one call, so that each batch has requests with different rules."""
    reference, model = case
    sources = random_sources(reference.config, 6, seed=3)
    plain = greedy_uncached(reference, sources, LIMIT)
    each = [options_of(rules) for rules in RULES for _ in sources]
    found = [whole(result) for result in model.generate(sources * len(RULES), each)]
    for number, rules in enumerate(RULES):
        expected = greedy_uncached(with_rules(reference, **rules), sources, LIMIT)
        assert found[number * 6 : number * 6 + 6] == expected, rules
        assert rules.keys() == {"renormalize_logits"} or expected != plain


def test_beams_are_the_oracle_s_under_the_rules(case: Pair, random_sources: RandomSources) -> None:
    reference, model = case
    sources = random_sources(reference.config, 3, seed=4)
    more: dict[str, Any] = {"num_beams": 3, "length_penalty": 0.7}
    each = [options_of(rules, num_return_sequences=2, **more) for rules in RULES for _ in sources]
    results = iter(model.generate(sources * len(RULES), each))
    for rules in RULES:
        generation = GenerationConfig(**rules, **more)
        for hypotheses in beam_search_uncached(reference, sources, LIMIT, generation=generation):
            found = next(results).hypotheses
            assert [
                [*h.tokens, *([] if h.end_token is None else [h.end_token])] for h in found
            ] == [list(h.tokens) for h in hypotheses[:2]], rules
            np.testing.assert_allclose(
                [h.score for h in found], [h.score for h in hypotheses[:2]], atol=1e-4
            )


def test_streams_end_with_the_end_token_of_the_call(
    case: Pair, random_sources: RandomSources
) -> None:
    reference, model = case
    ended = 0
    for source in random_sources(reference.config, 6, seed=5):
        options = options_of({"end_token_ids": (9, 4, 12)})
        (result,) = model.generate([source], options)
        streamed = list(model.stream(source, options))
        assert [token.id for token in streamed] == whole(result)
        assert [t.is_end for t in streamed[:-1]] == [False] * (len(streamed) - 1)
        assert streamed[-1].is_end == (result.end_token is not None)
        (hypothesis,) = result.hypotheses
        assert [t.log_probability for t in streamed] == list(hypothesis.token_log_probabilities)
        ended += streamed[-1].is_end
    assert ended >= 3


@torch.inference_mode()
def test_a_renormalized_score_is_over_the_allowed_tokens(
    case: Pair, random_sources: RandomSources
) -> None:
    """Greedily and in samples, whose tokens stay the same."""
    reference, model = case
    end = reference.config.end_token_id
    options: dict[str, Any] = {"max_new_tokens": 6, "min_new_tokens": 6}
    drawn: dict[str, Any] = {"do_sample": True, "seed": 7, "temperature": 1.3, "top_k": 9}
    for more in ({}, drawn):
        for source in random_sources(reference.config, 3, seed=8):
            (usual,) = model.generate([source], **options, **more)
            (found,) = model.generate([source], renormalize_logits=True, **options, **more)
            read = [[reference.config.start_token_id, *found.tokens[:-1]]]
            mask = torch.ones(1, len(source), dtype=torch.bool)
            logits = reference(torch.tensor([source]), mask, torch.tensor(read))[0].double()
            tokens = torch.tensor(found.tokens)[:, None]
            among_all = logits.log_softmax(-1).gather(1, tokens).sum()
            logits[:, end] = -torch.inf
            among_allowed = logits.log_softmax(-1).gather(1, tokens).sum()
            assert (found.tokens, found.log_probability) == (usual.tokens, usual.log_probability)
            assert found.log_probability == pytest.approx(float(among_all), abs=1e-4)
            assert usual.score == usual.log_probability
            assert found.score == pytest.approx(float(among_allowed), abs=1e-4)
            assert found.score > usual.score


def test_renormalized_phrases_are_found_with_comparable_scores(ids_model: Model) -> None:
    """Without rules, renormalizing changes no score; a required phrase does not either."""
    options: dict[str, Any] = {"num_beams": 3, "must_contain": [[7, 8]], "max_new_tokens": 8}
    usual, found = (
        ids_model.generate([[3, 4, 5]], renormalize_logits=renormalized, **options)[0]
        for renormalized in (False, True)
    )
    assert found.tokens == usual.tokens
    assert found.score == pytest.approx(usual.score, abs=1e-5)


def test_an_end_token_may_be_spelled(text_model: Model) -> None:
    sources = ["abc", "dragoman", "transformer"]
    by_id = text_model.generate(sources, end_token_id=[5, 9, 12], max_new_tokens=20)
    spelled: list[Any] = [["w5", "w9", 12], ("w12", "w9", "w5", 5)]
    for ends in spelled:
        assert text_model.generate(sources, end_token_id=ends, max_new_tokens=20) == by_id
    assert {result.end_token for result in by_id} - {None} <= {5, 9, 12}
    assert any(result.end_token is not None for result in by_id)
    single: list[Any] = ["w9", 9, np.int64(9), [9]]
    found = [text_model.generate(sources, end_token_id=end, max_new_tokens=20) for end in single]
    assert all(results == found[0] for results in found)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (
            "w99",
            r"end_token_id: expected a token of the vocabulary or an id in \[0, 23\), found 'w",
        ),
        (23, r"end_token_id: expected a token of the vocabulary or an id in \[0, 23\), found 23"),
        ([5, -1], "found -1"),
    ],
)
def test_an_end_token_is_one_of_the_vocabulary(text_model: Model, ends: Any, message: str) -> None:
    with pytest.raises(DragomanError, match=message):
        text_model.generate(["abc"], end_token_id=ends)


def test_an_end_token_that_cannot_be(ids_model: Model) -> None:
    with pytest.raises(DragomanError, match="has no tokenizers: expected a token id, found 'w5'"):
        ids_model.generate([[3]], end_token_id=["w5"])
    settings = dataclasses.replace(ids_model.manifest.generation, suppressed_token_ids=(5,))
    manifest = dataclasses.replace(ids_model.manifest, generation=settings)
    model = Model(dataclasses.replace(ids_model.bundle, manifest=manifest), ids_model.backend)
    with pytest.raises(DragomanError, match="found 5, which its settings suppress"):
        model.generate([[3]], end_token_id=5)


def test_a_prefix_may_have_the_end_token_of_other_calls(ids_model: Model) -> None:
    end = ids_model.manifest.model.end_token_id
    with pytest.raises(DragomanError, match="prefix: expected no end token"):
        ids_model.generate([[3, 4]], prefix=[end])
    (result,) = ids_model.generate([[3, 4]], prefix=[end], end_token_id=[])
    assert result.tokens[0] == end and result.finish_reason == "length"
    with pytest.raises(DragomanError, match="prefix: expected no end token, found 7"):
        ids_model.generate([[3, 4]], prefix=[7], end_token_id=7)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.0, "do_sample": True},
        {"temperature": 0, "do_sample": True, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 3},
        {"num_beams": 1, "length_penalty": 1.0},
        {"num_beams": 1, "length_penalty": 1, "early_stopping": False, "num_return_sequences": 1},
        {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        {"prefix": []},
        {"prefix": ()},
        {"prefix": np.array([], np.int64)},
        {"must_contain": [], "must_not_contain": []},
        {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "renormalize_logits": False},
        {"truncate": True},
    ],
    ids=str,
)
def test_options_without_an_effect_are_accepted(text_model: Model, options: dict[str, Any]) -> None:
    sources = ["abc", "dragoman"]
    assert text_model.generate(sources, **options) == text_model.generate(sources)


def test_temperature_0_is_greedy_in_a_bundle_that_does_otherwise(ids_model: Model) -> None:
    expected = ids_model.generate([[3, 4, 5]])

    def model_with(**settings: Any) -> Model:
        generation = dataclasses.replace(ids_model.manifest.generation, **settings)
        manifest = dataclasses.replace(ids_model.manifest, generation=generation)
        return Model(dataclasses.replace(ids_model.bundle, manifest=manifest), ids_model.backend)

    sampling, searching = model_with(do_sample=True, top_k=5), model_with(num_beams=3)
    assert sampling.generate([[3, 4, 5]], temperature=0) == expected
    assert searching.generate([[3, 4, 5]], temperature=0) == expected
    beams = ids_model.generate([[3, 4, 5]], num_beams=3)
    assert searching.generate([[3, 4, 5]], temperature=0, num_beams=3) == beams
    with pytest.raises(DragomanError, match="at most num_beams 1, found 2: greedy search"):
        sampling.generate([[3]], temperature=0, num_return_sequences=2)
