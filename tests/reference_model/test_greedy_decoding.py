"""Greedy decoding: with a cache, the output is exactly that without one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dragoman.reference_model import (
    GenerationConfig,
    KeyValueCache,
    LanguageModel,
    Transformer,
    decoding,
    greedy_cached,
    greedy_uncached,
    greedy_verified,
    pad,
)
from dragoman.reference_model.models import HiddenStates

from .test_language_models import make_model as language_model

MakeModel = Callable[..., Transformer]

VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {"seed": 4},
    "pre-norm": {"norm_order": "pre"},
    "learned positions": {"seed": 5, "positions": "learned", "scale_embedding": False},
    "untied": {"tie_target_output": False, "logits_bias": True},
    "one embedding": {"source_vocab_size": 19, "tie_source_target": True, "norm_order": "pre"},
    "small heads": {"d_head": 5, "num_heads": 4, "activation": "silu", "norm_order": "pre"},
    "no biases": {
        "seed": 4,
        "query_bias": False,
        "key_bias": False,
        "value_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
        "norm_bias": False,
        "tie_target_output": False,
    },
    "bart-like": {
        "seed": 5,
        "embedding_norm": True,
        "activation": "gelu",
        "positions": "learned",
        "norm_order": "pre",
        "start_token_id": 2,
    },
    "one deep, one shallow": {
        "seed": 5,
        "encoder_layers": 5,
        "decoder_layers": 1,
        "norm_order": "pre",
    },
    "started with padding": {
        "encoder_layers": 1,
        "decoder_layers": 3,
        "start_token_id": 0,
        "tie_target_output": False,
        "activation": "gelu_tanh",
    },
}
BATCHES = [[1], [16], [9, 9], [5, 1, 16, 9, 2, 12, 3]]


def sources_of(lengths: list[int]) -> list[list[int]]:
    generator = random.Random(sum(lengths))
    return [[generator.randrange(17) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("name", VARIANTS)
def test_with_and_without_a_cache_the_tokens_are_the_same(make_model: MakeModel, name: str) -> None:
    model = make_model(**VARIANTS[name])
    capacity = model.config.max_target_positions
    outputs: list[list[int]] = []
    for lengths in BATCHES:
        sources = sources_of(lengths)
        for max_new_tokens in (1, 4, capacity):
            expected = greedy_uncached(model, sources, max_new_tokens)
            assert greedy_cached(model, sources, max_new_tokens) == expected
            assert greedy_verified(model, sources, max_new_tokens) == expected
            assert len(expected) == len(sources)
        outputs += expected
    # The comparison would mean little if all outputs were one repeated token.
    assert len({tuple(output) for output in outputs}) >= 4
    assert len({token for output in outputs for token in output}) >= 4
    assert sum(len(set(output)) > 1 for output in outputs) >= 4
    assert max(len(output) for output in outputs) == capacity


@pytest.mark.parametrize("decode", [greedy_cached, greedy_uncached, greedy_verified])
def test_a_row_is_batch_invariant(
    make_model: MakeModel, decode: Callable[..., list[list[int]]]
) -> None:
    model = make_model(norm_order="pre")
    sources = sources_of([5, 1, 16, 9, 2, 12, 3])
    together = decode(model, sources, 12)
    assert [decode(model, [source], 12)[0] for source in sources] == together
    assert decode(model, sources[::-1], 12) == together[::-1]


@torch.no_grad()
@pytest.mark.parametrize("decode", [greedy_cached, greedy_uncached, greedy_verified])
def test_output_stops_after_the_end_token(
    make_model: MakeModel, decode: Callable[..., list[list[int]]]
) -> None:
    """The end token is chosen so that some rows end early, some at once, some never."""
    sources = sources_of([5, 1, 16, 9, 2, 12, 3])
    changes: dict[str, Any] = {"norm_order": "pre", "seed": 0}
    # With an end token that no row generates, outputs have full length.
    model = make_model(**changes)
    with torch.inference_mode():
        free = free_running(model, sources, 12)
    for end in {token for row in free for token in row}:
        expected = [row[: row.index(end) + 1] if end in row else row for row in free]
        ending = make_model(**changes, end_token_id=end)
        assert decode(ending, sources, 12) == expected


@pytest.mark.parametrize("name", ["pre-norm", "bart-like"])
def test_what_a_cache_proposes_does_not_matter(
    make_model: MakeModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong tokens at some steps are replaced, and what follows them."""
    generator = random.Random(1)
    choose = decoding._Rows.choose
    proposing = False

    def choose_sometimes_wrongly(rows: decoding._Rows, logits: torch.Tensor) -> None:
        choose(rows, logits)
        if proposing and generator.random() < 0.3:
            row = generator.choice(rows.new)
            row[-1] = (row[-1] + 1) % logits.shape[-1]

    def propose(rows: decoding._Rows, hidden: HiddenStates) -> None:
        nonlocal proposing
        proposing = True
        right(rows, hidden)
        proposing = False

    model, sources = make_model(**VARIANTS[name]), sources_of([5, 1, 16, 9, 2])
    expected = greedy_uncached(model, sources, 12)
    right = decoding._propose
    monkeypatch.setattr(decoding._Rows, "choose", choose_sometimes_wrongly)
    monkeypatch.setattr(decoding, "_propose", propose)
    assert greedy_cached(model, sources, 12) != expected
    assert greedy_verified(model, sources, 12) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_drafts_are_confirmed_or_replaced(make_model: MakeModel, name: str) -> None:
    """Right drafts, and some with a wrong token, too short, too long, or with an end too much."""
    model = make_model(**VARIANTS[name])
    sources = sources_of([5, 1, 16, 9, 2, 12, 3])
    expected = greedy_uncached(model, sources, 9)
    end = model.config.end_token_id
    other = next(token for token in range(17) if token not in (end, expected[0][-1]))
    wrong = [
        [*expected[0][:-1], other],
        expected[1][:-1],
        [*expected[2], other],
        [],
        [end],
        expected[5],
        [*expected[6], end],
    ]
    for drafts in (expected, wrong, [[end]] * 7, wrong[::-1]):
        assert greedy_verified(model, sources, 9, drafts) == expected


RULES: list[dict[str, Any]] = [
    {},
    {"end_token_ids": (3, 5, 8, 11)},
    {"end_token_ids": (4, 9), "min_length": 4, "suppressed_token_ids": (2, 7)},
    {"forced_first_token_id": 6, "forced_last_token_id": 1, "end_token_ids": (1, 5, 12)},
    {"no_repeat_ngram_size": 1, "repetition_penalty": 1.3, "min_new_tokens": 3},
    {"first_suppressed_token_ids": (3, 4), "bad_words": ((5, 6), (7,)), "prompt": (9, 2)},
]


@pytest.mark.parametrize("logits", [1, 100, 2**24])
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(rules) or "none")
@pytest.mark.parametrize("kind", ["transformer", "language model"])
def test_whatever_the_drafts_the_outputs_are_the_same(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    rules: dict[str, Any],
    logits: int,
) -> None:
    """Prefixes, other tokens, more tokens, numbers that are no tokens, outputs of other limits.

    Drafts are given one source at a time and together, and logits are computed in parts.
    """
    monkeypatch.setattr(decoding, "MOST_LOGITS", logits)
    model: Transformer | LanguageModel = make_model(norm_order="pre", seed=1)
    if kind == "language model":
        model = language_model(target_vocab_size=19)
    model.generation = GenerationConfig(**rules)
    sources = sources_of([5, 1, 11, 9, 2, 7, 3])
    expected = greedy_uncached(model, sources, 7)
    longer = greedy_uncached(model, sources, 9)
    end = model.config.end_token_id
    ends = model.generation.end_tokens(end)
    other = next(token for token in range(17) if token not in ends)
    makers: list[Callable[[list[int]], list[int]]] = [
        lambda output: output[: len(output) // 2],
        lambda output: output[:-1],
        lambda output: [*output, other],
        lambda output: [*output, *ends[-1:]],
        lambda output: [*output[:1], end, *output[2:]],
        lambda output: [*output[:-1], -1],
        lambda output: [*output[:2], -1, *output[3:]],
        lambda output: [*output[:2], 19, *output[3:]],
        lambda output: [10**20, *output[1:]],
        lambda output: [other, *output[1:]],
        lambda output: [*output[:-2], other, *output[-1:]],
        lambda output: [other] * len(output),
        lambda output: [],
    ]
    assert greedy_verified(model, sources, 7, expected) == expected
    assert greedy_verified(model, sources, 7, longer) == expected
    for number, make in enumerate(makers):
        drafts = [make(output) if (i + number) % 2 else output for i, output in enumerate(expected)]
        assert greedy_verified(model, sources, 7, drafts) == expected
    made = [makers[i % len(makers)](output) for i, output in enumerate(expected * 2)]
    assert greedy_verified(model, sources * 2, 7, made) == expected * 2


def test_right_drafts_need_no_decoding(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = make_model(norm_order="pre"), sources_of([5, 1, 16, 9])
    expected = greedy_uncached(model, sources, 12)
    decoded: list[int] = []
    propose = decoding._propose

    def counting(rows: decoding._Rows, hidden: HiddenStates) -> None:
        decoded.append(len(rows.sources))
        propose(rows, hidden)

    monkeypatch.setattr(decoding, "_propose", counting)
    assert greedy_verified(model, sources, 12, expected) == expected
    assert decoded == []
    drafts = [expected[0], expected[1], [*expected[2][:-1], expected[2][-1] - 1], expected[3]]
    assert greedy_verified(model, sources, 12, drafts) == expected
    assert decoded == [1]


def free_running(model: Transformer, sources: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy decoding of one row at a time, which no token ends."""
    rows = []
    for source in sources:
        tokens = [model.config.start_token_id]
        for _ in range(steps):
            logits = model(
                torch.tensor([source]), torch.ones(1, len(source)).bool(), torch.tensor([tokens])
            )
            tokens.append(int(logits[0, -1].argmax()))
        rows.append(tokens[1:])
    return rows


def test_no_new_tokens_give_empty_outputs(make_model: MakeModel) -> None:
    model = make_model()
    assert greedy_uncached(model, [[3], [4, 5]], 0) == [[], []]
    assert greedy_cached(model, [[3], [4, 5]], 0) == [[], []]


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 3, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_teacher_forced_logits_agree_with_stepwise_cached_ones(
    make_model: MakeModel, name: str, chunk: int
) -> None:
    model = make_model(**VARIANTS[name])
    capacity = model.config.max_target_positions
    sources = sources_of([5, 1, 16, 9, 2, 12, 3])
    source, mask = pad(sources, 0)
    target = torch.randint(0, 19, (7, capacity))
    expected = model(source, mask, target)
    cross = model.encode(source, mask)
    cache = KeyValueCache(model.config, 7, capacity)
    for first in range(0, capacity, chunk):
        token = target[:, first : first + chunk]
        logits = model.decode(token, cache.position, mask, cross, cache)
        torch.testing.assert_close(logits, expected[:, first : first + chunk], atol=1e-4, rtol=1e-4)
        cache.position += token.shape[1]


@torch.no_grad()
def test_rows_of_a_cache_may_stand_at_different_positions(make_model: MakeModel) -> None:
    model = make_model()
    source, mask = pad(sources_of([4, 8]), 0)
    target = torch.randint(0, 19, (2, 6))
    expected = model(source, mask, target)
    cross = model.encode(source, mask)
    cache = KeyValueCache(model.config, 2, 9)
    # Both rows process three tokens; the first is then set back by two and repeats them.
    model.decode(target[:, :3], cache.position, mask, cross, cache)
    cache.position = torch.tensor([1, 3])
    token = torch.stack([target[0, 1:4], target[1, 3:6]])
    logits = model.decode(token, cache.position, mask, cross, cache)
    torch.testing.assert_close(logits[0], expected[0, 1:4], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1], expected[1, 3:6], atol=1e-4, rtol=1e-4)


def test_a_cache_has_one_slot_a_position(make_model: MakeModel) -> None:
    config = make_model(d_head=5, decoder_layers=3).config
    cache = KeyValueCache(config, 2, 4)
    assert len(cache.layers) == 3
    assert all(part.shape == (2, 3, 4, 5) for layer in cache.layers for part in layer)
    cache.position = torch.tensor([0, 3])
    key, value = torch.ones(2, 3, 1, 5), torch.full((2, 3, 1, 5), 2.0)
    keys, values = cache.append(1, key, value)
    assert cache.length(1) == 4
    assert keys[:, 0, :, 0].tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert values[:, 2, :, 4].tolist() == [[2, 0, 0, 0], [0, 0, 0, 2]]
    assert not cache.layers[0][0].any()
