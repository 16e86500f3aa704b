"""The shipped student of `bible-en-es`: its bundles write what the trained student does.

The suite takes a few verses, `make test-shipped` all where figures are recorded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.reference_model import Transformer, greedy_uncached
from dragoman.reference_model.recipes import find_recipe
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.parity import check_parity

from .shipped_checkpoint import FILES, ShippedCheckpoint

NAME = "bible-en-es-student"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> ShippedCheckpoint:
    return ShippedCheckpoint(NAME, tmp_path_factory.mktemp(NAME))


@pytest.fixture(scope="module")
def oracle(shipped: ShippedCheckpoint) -> Transformer:
    assert isinstance(shipped.opened.model, Transformer)
    return shipped.opened.model


def test_every_token_is_the_oracles(oracle: Transformer, shipped: ShippedCheckpoint) -> None:
    model = shipped.bundle("fp32")
    sources = [model.tokenize(example.source) for example in shipped.held_out[::200]]
    limit = model.manifest.default_max_new_tokens
    found = [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in model.generate(sources)
    ]
    assert len(found) == 7 and found == greedy_uncached(oracle, sources, limit)


@pytest.mark.parametrize(
    "precision", [pytest.param("fp32", marks=pytest.mark.shipped), "int8"], ids=str
)
def test_bundles_pass(precision: Precision, shipped: ShippedCheckpoint) -> None:
    inputs = inputs_for(shipped.opened, Comparison(limit=20))
    parity = check_parity(
        shipped.bundle(precision), shipped.opened.model, inputs, backend="onnxruntime"
    )
    assert [task.metric for task in parity.tasks] == ["BLEU", "chrF"]
    assert parity.passed


@pytest.mark.shipped
def test_the_figures_are_the_recorded_ones(shipped: ShippedCheckpoint) -> None:
    outputs = shipped.bundle("fp32").generate([example.source for example in shipped.held_out])
    recipe = find_recipe("bible-en-es")
    assert recipe.score is not None
    found = recipe.score([str(result.text) for result in outputs], shipped.held_out)
    assert found == pytest.approx(shipped.record["held_out"], abs=0.1)


def test_the_checkpoint_is_complete_and_small(
    oracle: Transformer, shipped: ShippedCheckpoint
) -> None:
    teacher = ShippedCheckpoint("bible-en-es", Path())
    assert oracle.config.decoder_kind == "ssru"
    assert shipped.record["recipe"] == NAME
    assert shipped.held_out == teacher.held_out
    assert (shipped.directory / "model.safetensors").stat().st_size <= 4_000_000
    assert shipped.files == FILES | {"LICENSE-Bibles.txt"}
    licence = (shipped.directory / "LICENSE-Bibles.txt").read_text(encoding="utf-8")
    assert "American Standard Version" in licence and licence.count("public domain") >= 2
