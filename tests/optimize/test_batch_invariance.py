"""Outputs are batch-invariant, bit for bit: they do not depend on the other requests in the batch.

Neither their number, lengths and order nor the number of threads matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import Bundle, Model, load

Optimize = Callable[..., Bundle]
Opened = tuple[Model, Model]
"""The model with one thread and with two."""

SEEDS = range(3)
FORMS = ("fp32", "int8", "int8, fixed scales", "int4")
SOURCE, TARGET, VOCABULARY = 20, 15, 210
"""The most tokens of a source, which the models have positions for, and of a target."""


@pytest.fixture(
    scope="module",
    params=[(m, p) for m in ("neutral", "odd_heads", "t5", "recurrent", "gated") for p in FORMS],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def opened(request: pytest.FixtureRequest, optimize: Optimize) -> Iterator[Opened]:
    yield from _opened(request, optimize)


@pytest.fixture(scope="module", params=FORMS)
def language_model(request: pytest.FixtureRequest, optimize: Optimize) -> Iterator[Opened]:
    request.param = ("decoder_only", request.param)
    yield from _opened(request, optimize)


@pytest.fixture(scope="module", params=FORMS)
def encoder(request: pytest.FixtureRequest, optimize: Optimize) -> Iterator[Opened]:
    request.param = ("encoder_only", request.param)
    yield from _opened(request, optimize)


def _opened(request: pytest.FixtureRequest, optimize: Optimize) -> Iterator[Opened]:
    name, form = request.param
    precision, _, fixed = form.partition(", ")
    drawn = np.random.default_rng(9).integers(3, VOCABULARY, (40, 7)).tolist()
    made = optimize(request.getfixturevalue(name), precision, calibration=drawn if fixed else None)
    chosen = {choice.chosen for step in made.manifest.passes for choice in step.choices}
    assert ("fixed scale" in chosen) == bool(fixed)
    directory = made.directory
    with load(directory, threads=1) as one, load(directory, threads=2) as two:
        yield one, two


class Case:
    """Eleven sources in random order, one of one token and one of the most, and a model that takes
    some of them in a batch."""

    def __init__(self, opened: Opened, seed: int, longest: int) -> None:
        self.random = np.random.default_rng(seed)
        lengths = [1, longest, *self.random.integers(1, longest + 1, 9)]
        self.sources = [self.tokens(int(n)) for n in self.random.permutation(lengths)]
        self.single = opened[0]
        self.batched = opened[int(self.random.integers(2))]
        self.size = int(self.random.integers(2, 12))

    def tokens(self, count: int) -> list[int]:
        drawn: list[int] = self.random.integers(3, VOCABULARY, count).tolist()
        return drawn

    def check(self, call: Callable[..., list[Any]], items: list[Any], **options: Any) -> None:
        """Compare results exactly: numbers must be the same, not close."""
        expected = [call(self.single, [item], **options)[0] for item in items]
        assert call(self.batched, items, max_batch_size=self.size, **options) == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "options",
    [
        {"alternatives": 3},
        {"num_beams": 3, "num_return_sequences": 3},
        {"do_sample": True, "seed": 5, "alternatives": 2},
        {"prefix": [7, 11, 5]},
    ],
    ids=lambda options: "-".join(options),
)
def test_outputs(opened: Opened, options: dict[str, Any], seed: int) -> None:
    case = Case(opened, seed, SOURCE)
    case.check(Model.generate, case.sources, max_new_tokens=TARGET, **options)


def test_limits(opened: Opened) -> None:
    """A batch has room for its longest output; how much that is must not matter."""
    check_limits(Case(opened, 0, SOURCE))


def test_limits_of_a_neutral_bundle(neutral: Bundle) -> None:
    with load(neutral.directory, threads=1) as one, load(neutral.directory, threads=2) as two:
        check_limits(Case((one, two), 0, SOURCE))


def check_limits(case: Case) -> None:
    for source in case.sources[:3]:
        (longest,) = case.single.generate([source], max_new_tokens=TARGET, alternatives=3)
        for limit in range(1, TARGET):
            (output,) = case.single.generate([source], max_new_tokens=limit, alternatives=3)
            (found,), (expected,) = output.hypotheses, longest.hypotheses
            assert found.alternatives == expected.alternatives[:limit]


@pytest.mark.parametrize("seed", SEEDS)
def test_scores(opened: Opened, seed: int) -> None:
    case = Case(opened, seed, SOURCE)
    lengths = case.random.integers(1, TARGET, len(case.sources))
    pairs = [(s, case.tokens(int(n))) for s, n in zip(case.sources, lengths, strict=True)]
    case.check(Model.score, pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_of_a_decoder_only_model(language_model: Opened, seed: int) -> None:
    case = Case(language_model, seed, 8)
    case.check(Model.generate, case.sources, max_new_tokens=8, alternatives=3)


def test_limits_of_a_decoder_only_model(language_model: Opened) -> None:
    check_limits(Case(language_model, 0, 5))


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_of_a_decoder_only_model(language_model: Opened, seed: int) -> None:
    case = Case(language_model, seed, 8)
    case.check(Model.score, [([], case.tokens(len(s))) for s in case.sources])


@pytest.mark.parametrize("seed", SEEDS)
def test_an_encoder_only_model(encoder: Opened, seed: int) -> None:
    case = Case(encoder, seed, SOURCE)
    expected = [case.single.classify([source])[0] for source in case.sources]
    assert case.batched.classify(case.sources) == expected
