"""Scores of a decoder-only model are Hugging Face's log-softmax, and perplexity is made of them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Model, load, perplexity, read_bundle

from ...small_gpt2 import END, POSITIONS, START, VOCABULARY, small_gpt2, their_logits

Pairs = list[tuple[list[int], list[int]]]
TARGETS = ("neutral", "cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt2")


@pytest.fixture(scope="module")
def theirs(directory: Path) -> Any:
    return small_gpt2(directory)


@pytest.fixture(scope="module")
def models(theirs: Any, directory: Path) -> dict[str, Model]:
    (directory / "cpu").mkdir()
    optimize_bundle(read_bundle(directory / "bundle"), directory / "cpu", target="cpu")
    folders = zip(TARGETS, (directory / "bundle", directory / "cpu"), strict=True)
    return {name: load(folder, threads=1) for name, folder in folders}


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """Ragged, from one token to all positions; the first prompt is empty."""
    generator = random.Random(4)
    lengths = [(0, 3), (1, POSITIONS), (POSITIONS, 1), (1, 1), (6, 8), (5, 2), (9, 3), (2, 11)]

    def tokens(count: int) -> list[int]:
        return [generator.randrange(3, VOCABULARY) for _ in range(count)]

    return [(tokens(prompt), tokens(target)) for prompt, target in lengths]


def wanted(theirs: Any, prompt: list[int], target: list[int]) -> list[float]:
    """Without a prompt, the target follows the start token."""
    read = [*(prompt or [START]), *target][:-1]
    logits = their_logits(theirs, read)[-len(target) :]
    values: list[float] = logits.log_softmax(-1)[range(len(target)), target].tolist()
    return values


@pytest.mark.parametrize("name", TARGETS)
def test_scores_and_perplexity(
    name: str, models: dict[str, Model], theirs: Any, pairs: Pairs
) -> None:
    scored = models[name].score(pairs)
    expected = [wanted(theirs, prompt, target) for prompt, target in pairs]
    for (_, target), found, values in zip(pairs, scored, expected, strict=True):
        assert found.error is None
        assert found.tokens == tuple(target)
        assert found.token_log_probabilities == pytest.approx(values, abs=1e-4)
        assert found.log_probability == pytest.approx(math.fsum(values), abs=1e-3)
    everything = [value for values in expected for value in values]
    mean = -math.fsum(everything) / len(everything)
    assert math.log(perplexity(scored)) == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_end_tokens_are_scored_where_they_are_asked_for(
    name: str, models: dict[str, Model], theirs: Any, pairs: Pairs
) -> None:
    chosen = [(prompt, target) for prompt, target in pairs if len(prompt + target) < POSITIONS]
    assert len(chosen) >= 3
    scored = models[name].score(chosen, end_token=True)
    for (prompt, target), found in zip(chosen, scored, strict=True):
        values = wanted(theirs, prompt, [*target, END])
        assert found.tokens == (*target, END)
        assert found.token_log_probabilities == pytest.approx(values, abs=1e-4)
    stated = models[name].score([(prompt, [*target, END]) for prompt, target in chosen])
    for one, other in zip(stated, scored, strict=True):
        assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-5)


@pytest.mark.parametrize("name", TARGETS)
def test_company_does_not_matter(name: str, models: dict[str, Model], pairs: Pairs) -> None:
    together = models[name].score(pairs)
    for size in (1, 3):
        alone = models[name].score(pairs[::-1], max_batch_size=size)[::-1]
        for one, other in zip(alone, together, strict=True):
            assert one.token_log_probabilities == pytest.approx(
                other.token_log_probabilities, abs=1e-5
            )


def test_the_loss_of_their_library(models: dict[str, Model], theirs: Any, pairs: Pairs) -> None:
    """Its labels leave the prompt out, and its loss is the mean."""
    for prompt, target in pairs[1:]:
        if len(prompt + target) > POSITIONS:
            continue
        labels = torch.tensor([[-100] * len(prompt) + target])
        with torch.inference_mode():
            loss = float(theirs(torch.tensor([prompt + target]), labels=labels).loss)
        found = models["cpu"].score([(prompt, target)])
        assert math.log(perplexity(found)) == pytest.approx(loss, abs=1e-4)
