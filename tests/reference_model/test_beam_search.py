"""Beam search on a table of probabilities, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from dragoman.reference_model import (
    GenerationConfig,
    Hypothesis,
    ModelConfig,
    Transformer,
    beam_search_uncached,
)

PAD, START, END, A, B = range(5)
NAMES = {END: ".", A: "a", B: "b"}

TABLE: dict[str, dict[str, float]] = {
    "": {"a": 0.5, "b": 0.4, ".": 0.1},
    "a": {".": 0.4, "a": 0.35, "b": 0.25},
    "b": {"b": 0.8, "a": 0.1, ".": 0.1},
    "ba": {".": 0.2, "a": 0.2, "b": 0.2},
    "bb": {"a": 0.6, ".": 0.3, "b": 0.1},
    "aa": {".": 0.9, "a": 0.05, "b": 0.05},
    "bba": {".": 0.26, "a": 0.15, "b": 0.1},
    "bbb": {".": 0.1, "a": 0.1, "b": 0.1},
    "bbaa": {".": 0.9, "a": 0.05, "b": 0.05},
    "bbab": {".": 0.5, "a": 0.25, "b": 0.25},
}
"""Probability of the next token after each hypothesis. The rest up to 1 is the padding's,
which is suppressed; that does not make the others more probable.

The products, and with two beams what becomes of them (! goes on, . finishes):
1   a .5 !        b .4 !       . .1 (the third: too improbable to finish)
2   bb .32 !      a. .2 .      aa .175 !       ab .125      ba, b. .04
3   bba .192 !    aa. .1575 .  bb. .096        bbb .032 !   aaa, aab .00875
4   bba. .04992 . bbaa .0288 ! bbab .0192 !    bbb. and others .0032
5   bbaa. .02592 . bbab. .0096 . bbaba, bbabb .0048 !  bbaaa, bbaab .00144
"""


class Table:
    """A model whose next token depends on the hypothesis only."""

    def __init__(self, generation: GenerationConfig) -> None:
        self.config = ModelConfig(source_vocab_size=9, target_vocab_size=5)
        self.generation = generation
        self.hypotheses: list[list[str]] = []

    def prompt(self, source: Sequence[int]) -> list[int]:
        return [START]

    def source_tokens(self, source: Sequence[int]) -> Sequence[int]:
        return source

    def decoding(self, sources: object) -> Any:
        return self.logits

    def output(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def logits(self, token: torch.Tensor, position: object, memory: object) -> torch.Tensor:
        assert token[:, 0].eq(START).all()
        self.hypotheses.append([text(row[1:]) for row in token.tolist()])
        logits = torch.full((*token.shape, 5), -torch.inf)
        for row, hypothesis in enumerate(self.hypotheses[-1]):
            left = 1.0
            for index, name in NAMES.items():
                logits[row, -1, index] = math.log(TABLE[hypothesis][name])
                left -= TABLE[hypothesis][name]
            logits[row, -1, PAD] = math.log(max(left, 0)) if left > 1e-9 else -torch.inf
        return logits + 7  # logits are not normalized


def text(tokens: Sequence[int]) -> str:
    return "".join(NAMES[token] for token in tokens)


def search(limit: int, **settings: Any) -> list[Hypothesis]:
    usual: dict[str, Any] = {"num_beams": 2, "suppressed_token_ids": (PAD,)}
    model = Table(GenerationConfig(**usual | settings))
    first, second = beam_search_uncached(cast(Transformer, model), [[5], [5, 3]], limit)
    assert first == second
    return first


@pytest.mark.parametrize(
    ("limit", "settings", "margin"),
    [
        # In step 2 a. (.2) finishes, because it is ahead of aa (.175).
        (6, {"early_stopping": True}, math.log(0.2 / 0.175)),
        # The search ends after step 4: ln .0288 / 4^1.1 = -.772 cannot pass ln .04992 / 4^1.1.
        (6, {"length_penalty": 1.1}, math.log(0.04992 / 0.0288) / 4**1.1),
        # Step 2 keeps aa (.175) and drops ab (.125). At the limit all that is kept finishes.
        (3, {"min_new_tokens": 2}, math.log(0.175 / 0.125)),
        (1, {}, math.inf),
        # In step 1 b (.4) finishes, and . (.1) does not.
        (2, {"end_token_ids": (END, B), "early_stopping": True}, math.log(0.4 / 0.1)),
        # In step 2 b. (.1) finishes, and would not if ba (.1) were ahead of it.
        (3, {"forced_first_token_id": B}, 0.0),
    ],
)
def test_margins_by_hand(limit: int, settings: dict[str, Any], margin: float) -> None:
    for hypothesis in search(limit, **settings):
        assert hypothesis.margin == pytest.approx(margin, abs=1e-6)


@pytest.mark.parametrize(
    ("limit", "settings", "expected"),
    [
        # Two are finished after step 3.
        (6, {"early_stopping": True}, {"aa.": math.log(0.1575) / 3, "a.": math.log(0.2) / 2}),
        # ln .192 / 3 = -.550 is better than the second, -.805, ln .0288 / 4 = -.887 than neither.
        (6, {}, {"aa.": math.log(0.1575) / 3, "bba.": math.log(0.04992) / 4}),
        # But ln .0288 / 6 = -.591 would be, and in the end ln .0048 / 6 = -.890 is not.
        (
            6,
            {"early_stopping": "never"},
            {"aa.": math.log(0.1575) / 3, "bbaa.": math.log(0.02592) / 5},
        ),
        # At the limit everything finishes.
        (3, {}, {"bba": math.log(0.192) / 3, "aa.": math.log(0.1575) / 3}),
        (1, {}, {"a": math.log(0.5), "b": math.log(0.4)}),
        (2, {}, {"bb": math.log(0.32) / 2, "a.": math.log(0.2) / 2}),
        # Without a penalty the shorter one is the better one, and further ones only get worse.
        (
            6,
            {"length_penalty": 0.0, "early_stopping": "never"},
            {"a.": math.log(0.2), "aa.": math.log(0.1575)},
        ),
        # ln .192 * 3 = -4.95 against ln .1575 * 3 = -5.54 and ln .2 * 2 = -3.22.
        (
            6,
            {"length_penalty": -1.0},
            {"a.": math.log(0.2) * 2, "aa.": math.log(0.1575) * 3},
        ),
        (
            4,
            {"length_penalty": 2.0},
            {"aa.": math.log(0.1575) / 9, "bba.": math.log(0.04992) / 16},
        ),
        # A forced token is certain, and its length counts: b 1, then bb .8, b. and ba .1.
        (
            3,
            {"forced_first_token_id": B, "early_stopping": True},
            {"bba": math.log(0.48) / 3, "bb.": math.log(0.24) / 3},
        ),
        # The end token is out of the question, so bb and aa go on.
        (3, {"min_new_tokens": 2}, {"bba": math.log(0.192) / 3, "aa.": math.log(0.1575) / 3}),
        # There is only one such output.
        (1, {"forced_first_token_id": B}, {"b": 0.0}),
        (2, {"forced_first_token_id": B, "forced_last_token_id": END}, {"b.": 0.0}),
        # There is none.
        (2, {"suppressed_token_ids": (PAD, END, A, B)}, {}),
        # b ends, too: after step 1 b is finished, after step 2 a. and ab would be.
        (
            4,
            {"end_token_ids": (END, B), "early_stopping": True},
            {"b": math.log(0.4), "a.": math.log(0.2) / 2},
        ),
    ],
)
def test_by_hand(limit: int, settings: dict[str, Any], expected: dict[str, float]) -> None:
    found = search(limit, **settings)
    assert {text(h.tokens): h.score for h in found} == pytest.approx(expected, abs=1e-6)
    assert [text(h.tokens) for h in found] == sorted(expected, key=lambda o: -expected[o])


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"early_stopping": True}, 3),
        ({}, 4),
        ({"early_stopping": "never"}, 5),
        # ln .192 * 3 = -4.95 is better than ln .1575 * 3 = -5.54, ln .0288 * 4 = -14.2 is not; with
        # a penalty like this, no hypothesis gets better by getting longer.
        ({"early_stopping": "never", "length_penalty": -1.0}, 4),
    ],
)
def test_beams_that_go_on(settings: dict[str, Any], steps: int) -> None:
    """The targets of each step, the most probable first."""
    generation = GenerationConfig(num_beams=2, suppressed_token_ids=(PAD,), **settings)
    model = Table(generation)
    beam_search_uncached(cast(Transformer, model), [[5]], 6)
    expected = [[""], ["a", "b"], ["bb", "aa"], ["bba", "bbb"], ["bbaa", "bbab"]]
    assert model.hypotheses == expected[:steps]


def test_log_probabilities_of_tokens_are_those_under_the_rules() -> None:
    best, second = search(3)
    expected = [math.log(p) for p in (0.4, 0.8, 0.6)]
    assert best.token_log_probabilities == pytest.approx(expected, abs=1e-6)
    assert math.fsum(second.token_log_probabilities) / 3 == second.score
    # The second b is twice as improbable, to speak of logarithms; of b, bb .8^2 remains the best.
    (best, _) = search(2, forced_first_token_id=B, repetition_penalty=2.0)
    assert text(best.tokens) == "bb"
    assert best.token_log_probabilities == pytest.approx([0, 2 * math.log(0.8)], abs=1e-6)
    assert best.score == pytest.approx(math.log(0.8), abs=1e-6)


def test_of_equally_probable_ones_the_lowest_token_comes_first() -> None:
    found = search(2, num_beams=5, forced_first_token_id=B)
    assert [text(h.tokens) for h in found] == ["bb", "b.", "ba"]
    assert found[1].score == found[2].score


def test_settings_may_differ_from_the_model_s() -> None:
    model = Table(GenerationConfig(num_beams=2, suppressed_token_ids=(PAD,)))
    wider = GenerationConfig(num_beams=3, suppressed_token_ids=(PAD,))
    (found,) = beam_search_uncached(cast(Transformer, model), [[5]], 1, generation=wider)
    assert [text(h.tokens) for h in found] == ["a", "b", "."]
