"""Level 2 compares the default strategy of bundles that decode with beams, besides greedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dragoman.cli.shared.tables import print_parity
from dragoman.reference_model import (
    GenerationConfig,
    Hypothesis,
    Transformer,
    beam_search_uncached,
)
from dragoman.runtime import GenerationOptions, Model
from dragoman.runtime.decoding.request import EncoderInput
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import BeamParity, Parity, TokenParity
from dragoman.verification.checks import beams
from dragoman.verification.checks.beams import MOST_SOURCES, compare_beams
from dragoman.verification.inputs.parity_inputs import random_inputs
from dragoman.verification.parity import check_parity
from dragoman.verification.verdict import describe_failure


@pytest.fixture(scope="module")
def searched(
    make_model: Callable[..., Transformer], make_bundle: Callable[[Transformer], Model]
) -> tuple[Transformer, Model]:
    model = make_model(seed=3)
    model.generation = GenerationConfig(num_beams=4, length_penalty=0.6, early_stopping=True)
    return model, make_bundle(model)


def parity_of(bundle: Model, reference: Transformer) -> Parity:
    inputs = random_inputs(reference, 20)
    return check_parity(bundle, reference, inputs, backend="onnxruntime")


def test_a_faithful_bundle_finds_the_oracle_s_hypotheses(
    searched: tuple[Transformer, Model],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference, bundle = searched
    parity = parity_of(bundle, reference)
    assert parity.passed
    beams = parity.beams
    assert beams is not None
    assert (beams.beams, beams.sequences) == (4, MOST_SOURCES)
    assert beams.identical == MOST_SOURCES
    assert beams.score_difference < 1e-4
    monkeypatch.setenv("COLUMNS", "250")
    print_parity(parity)
    assert "8 of 8 identical; scores differ by" in capsys.readouterr().out.replace("\n", " ")


def test_another_search_than_the_checkpoint_s_is_noticed(
    searched: tuple[Transformer, Model],
) -> None:
    """The bundle ranks by another length penalty than its manifest says."""
    reference, bundle = searched
    generate = bundle.generate

    def generate_otherwise(
        sources: list[EncoderInput], options: GenerationOptions, **changes: Any
    ) -> object:
        if options.num_beams is None:
            changes |= {"length_penalty": -3.0, "early_stopping": "never"}
        return generate(sources, options, **changes)

    bundle.generate = generate_otherwise  # type: ignore[method-assign, assignment]
    try:
        parity = parity_of(bundle, reference)
    finally:
        del bundle.generate
    assert not parity.passed
    assert parity.tokens.passed
    assert describe_failure(parity).startswith("parity failed: with 4 beams ")


@pytest.mark.parametrize(("margin", "ties"), [(1e-7, 1), (1e-3, 0)])
def test_a_near_tie_within_the_search_is_excused(
    searched: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch, margin: float, ties: int
) -> None:
    """The first output is another one than the oracle's, with a lower score."""
    reference, bundle = searched
    generate = bundle.generate

    def with_another(*arguments: Any, **changes: Any) -> object:
        results = generate(*arguments, **changes, num_return_sequences=2)
        (second,) = [h for h in results[0].hypotheses if h != results[0].hypotheses[0]]
        values = {n: getattr(second, n) for n in ("tokens", "score", "end_token", "finish_reason")}
        return [dataclasses.replace(results[0], **values), *results[1:]]

    def with_margin(*arguments: Any, **changes: Any) -> list[list[Hypothesis]]:
        found = beam_search_uncached(*arguments, **changes)
        return [[dataclasses.replace(h, margin=margin) for h in each] for each in found]

    monkeypatch.setattr(bundle, "generate", with_another)
    monkeypatch.setattr(beams, "beam_search_uncached", with_margin)
    found = compared(bundle, reference)
    assert (found.identical, found.ties) == (MOST_SOURCES - 1, ties)
    assert found.passed == bool(ties)


def test_greedy_bundles_have_no_such_figures(bundle: Model, reference: Transformer) -> None:
    assert parity_of(bundle, reference).beams is None


def relabelled(bundle: Model, precision: Precision, **settings: Any) -> Model:
    """The bundle with another precision and other generation settings in its manifest."""
    generation = dataclasses.replace(bundle.manifest.generation, **settings)
    manifest = dataclasses.replace(bundle.manifest, precision=precision, generation=generation)
    return Model(dataclasses.replace(bundle.bundle, manifest=manifest), bundle.backend)


def compared(bundle: Model, reference: Transformer, slack: float = 1e-3) -> BeamParity:
    sources = random_inputs(reference, 20).sources
    found = compare_beams(bundle, reference, sources, 12, None, slack)
    assert found is not None
    return found


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_scores_are_those_of_one_pass_in_every_precision(
    searched: tuple[Transformer, Model], precision: Precision
) -> None:
    reference, bundle = searched
    found = compared(relabelled(bundle, precision), reference)
    assert found.passed and found.own_allowed is not None
    assert found.own_difference < 1e-5 < found.own_allowed


def test_what_a_score_may_differ_by(searched: tuple[Transformer, Model]) -> None:
    """By hand: with scores that are all 1 too low, the worst hypothesis is the one for which the
    least is allowed: 0.01 and a tenth of it for each token, over its length to the 0.6."""
    reference, bundle = searched
    generate = bundle.generate
    lengths: list[int] = []

    def lower(*arguments: Any, **changes: Any) -> object:
        results = generate(*arguments, **changes)
        lengths.extend(len(r.tokens) + (r.end_token is not None) for r in results)
        return [dataclasses.replace(r, score=r.score - 1) for r in results]

    bundle.generate = lower  # type: ignore[method-assign, assignment]
    try:
        found = compared(bundle, reference, slack=0.01)
    finally:
        del bundle.generate
    assert not found.passed
    assert found.own_difference == pytest.approx(1, abs=1e-4)
    least = min(0.01 * (1 + length / 10) / length**0.6 for length in lengths)
    assert found.own_allowed == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    "settings", [{"length_penalty": 0.7}, {"length_penalty": 0.0}, {"num_beams": 1}]
)
def test_scores_are_normalized_as_the_checkpoint_says(
    searched: tuple[Transformer, Model], precision: Precision, settings: dict[str, Any]
) -> None:
    """Whatever the bundle's manifest says of it."""
    reference, bundle = searched
    found = compared(relabelled(bundle, precision, **settings), reference)
    assert not found.passed
    assert found.beams == 4
    assert found.own_allowed is not None and found.own_difference > found.own_allowed


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_renormalized_scores_are_the_oracle_s(
    searched: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    """A bundle that does not renormalize them fails."""
    reference, bundle = searched
    rules: dict[str, Any] = {"min_new_tokens": 6, "renormalize_logits": True}
    generation = dataclasses.replace(reference.generation, **rules)
    monkeypatch.setattr(reference, "generation", generation)
    found = compared(relabelled(bundle, precision, **rules), reference)
    assert found.passed and found.identical == MOST_SOURCES
    assert found.score_difference < 1e-5 and found.own_difference < 1e-5
    other = compared(relabelled(bundle, precision, min_new_tokens=6), reference)
    assert not other.passed


def test_another_number_of_beams_than_the_checkpoint_s_is_no_other_length_penalty(
    searched: tuple[Transformer, Model],
) -> None:
    """What it finds then is scored as it should be; at fp32 it is not the oracle's."""
    reference, bundle = searched
    found = compared(relabelled(bundle, "int8", num_beams=2), reference)
    assert found.own_difference < 1e-5
    assert found.beams == 4


def test_log_probabilities_that_are_wrong_show_in_the_score(
    searched: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pass gives half the logits that steps give."""
    reference, bundle = searched
    changed = relabelled(bundle, "int8")
    score = bundle.backend.score
    monkeypatch.setattr(bundle.backend, "score", lambda *a: score(*a) / np.float32(2))
    found = compared(changed, reference)
    assert not found.passed
    tokens = TokenParity(0, 0, (), True)
    parity = Parity(False, "oracle", "inputs", "onnxruntime", (), tokens, beams=found)
    assert describe_failure(parity) == (
        f"parity failed: with 4 beams the score of a hypothesis differs by "
        f"{found.own_difference:.3g} from the one that the bundle's own log-probabilities give "
        f"under the checkpoint's length penalty, allowed {found.own_allowed:.2g}"
    )


def test_where_no_hypothesis_is_the_oracle_s_nothing_is_decided(
    searched: tuple[Transformer, Model], capsys: pytest.CaptureFixture[str]
) -> None:
    reference, bundle = searched
    found = BeamParity(4, 8, 0, 0, 0.0, True, own_difference=1e-6, own_allowed=1e-3)
    assert found.undecided and not dataclasses.replace(found, ties=1).undecided
    print_parity(dataclasses.replace(parity_of(bundle, reference), beams=found))
    rows = [row for row in capsys.readouterr().out.splitlines() if "0 of 8" in row]
    assert rows and "undecided" in rows[0] and "passed" not in rows[0]
