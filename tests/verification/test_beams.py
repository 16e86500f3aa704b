"""Level 2 compares the default strategy of bundles that decode with beams, besides greedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dragoman.cli.tables import print_parity
from dragoman.reference_model import GenerationConfig, Transformer
from dragoman.runtime import GenerationOptions, Model
from dragoman.runtime.decoding.batching import Encodable
from dragoman.runtime.format.records import Parity
from dragoman.verification import check_parity, describe_failure, random_inputs
from dragoman.verification.checks.beams import MOST_SOURCES


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
        sources: list[Encodable], options: GenerationOptions, **changes: Any
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


def test_greedy_bundles_have_no_such_figures(bundle: Model, reference: Transformer) -> None:
    assert parity_of(bundle, reference).beams is None
