"""The shipped language model: its bundle continues held-out verses as the oracle does.

The suite takes a few verses, `make test-shipped` more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.reference_model import LanguageModel, greedy_uncached
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, find_recipe, verses_en
from dragoman.runtime import perplexity
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.parity import check_parity

from .shipped_checkpoint import FILES, ShippedCheckpoint

VERSES = 1400
CONTINUED = 8
NEW = 40


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> ShippedCheckpoint:
    return ShippedCheckpoint("verses-en", tmp_path_factory.mktemp("verses-en"))


def whole(example: Example) -> str:
    return example.source + example.references[0]


def test_the_held_out_verses_are_those_of_the_recipes_split(shipped: ShippedCheckpoint) -> None:
    assert len(shipped.held_out) == VERSES
    assert shipped.held_out == verses_en.load_data().held_out


@pytest.mark.parametrize("verses", [10, pytest.param(50, marks=pytest.mark.shipped)])
def test_every_token_is_the_oracles(verses: int, shipped: ShippedCheckpoint) -> None:
    assert isinstance(shipped.opened.model, LanguageModel)
    model = shipped.bundle("fp32")
    chosen = [example.source for example in shipped.held_out[:: VERSES // verses]]
    expected = greedy_uncached(shipped.opened.model, [model.tokenize(text) for text in chosen], NEW)
    found = [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in model.generate(chosen, max_new_tokens=NEW)
    ]
    assert len(found) == verses and found == expected


@pytest.mark.parametrize(
    ("precision", "verses"),
    [
        ("int8", 3),
        pytest.param("fp32", CONTINUED, marks=pytest.mark.shipped),
        pytest.param("int8", CONTINUED, marks=pytest.mark.shipped),
    ],
)
def test_parity(precision: Precision, verses: int, shipped: ShippedCheckpoint) -> None:
    """On verses that it has not seen: numbers, outputs, and how probable the real rests are."""
    inputs = inputs_for(shipped.opened, Comparison(limit=verses))
    parity = check_parity(
        shipped.bundle(precision), shipped.opened.model, inputs, backend="onnxruntime"
    )
    assert parity.passed
    assert parity.tasks == ()  # it is judged by the probability of references
    assert parity.references is not None and parity.references.pairs == verses
    if precision == "fp32":
        assert parity.tokens.identical == parity.tokens.sequences == verses


@pytest.mark.parametrize(
    ("every", "rel"), [(20, 0.1), pytest.param(1, 1e-5, marks=pytest.mark.shipped)]
)
def test_perplexity_is_the_recorded_one(every: int, rel: float, shipped: ShippedCheckpoint) -> None:
    """The runtime has the trained model's figure on whole verses."""
    scored = shipped.bundle("fp32").score(
        [whole(example) for example in shipped.held_out[::every]], end_token=True
    )
    assert perplexity(scored) == pytest.approx(shipped.record["held_out"]["perplexity"], rel=rel)
    assert shipped.record["held_out"]["perplexity"] < 20
    lines = (find_checkpoint("verses-en") / "history.jsonl").read_text(encoding="utf-8")
    validation = [json.loads(line)["metric"] for line in lines.splitlines()]
    assert validation == sorted(validation, reverse=True)  # it never got worse


@pytest.mark.parametrize("every", [70, pytest.param(20, marks=pytest.mark.shipped)])
def test_outputs_are_verses(every: int, shipped: ShippedCheckpoint) -> None:
    """They go on where the prompt ends, with a space or a comma, and most end by themselves."""
    results = shipped.bundle("fp32").generate(
        [e.source for e in shipped.held_out[::every]], do_sample=True, seed=1
    )
    assert all(result.error is None for result in results)
    assert sum(result.finish_reason == "end" for result in results) > 0.9 * len(results)
    begun = sum(result.text[:1] in (" ", ",") for result in results if result.text)
    assert begun > 0.86 * len(results)


def test_the_checkpoint_is_complete_and_small(shipped: ShippedCheckpoint) -> None:
    recipe = find_recipe("verses-en")
    assert shipped.record["recipe"] == recipe.name == shipped.opened.name
    assert isinstance(shipped.opened.model, LanguageModel)
    assert shipped.opened.model.config == recipe.config
    assert (shipped.directory / "model.safetensors").stat().st_size <= 8_000_000
    licence = (shipped.directory / "LICENSE-World-English-Bible.txt").read_text(encoding="utf-8")
    assert licence == verses_en.PUBLIC_DOMAIN and "public domain" in licence
    assert shipped.files == FILES | {"LICENSE-World-English-Bible.txt"}


@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("source_tokenizer.json", verses_en.make_source_tokenizer),
        ("target_tokenizer.json", verses_en.make_target_tokenizer),
    ],
)
def test_the_tokenizers_are_the_recipes(
    file: str, make: Callable[[], Any], shipped: ShippedCheckpoint
) -> None:
    stored = json.loads((shipped.directory / file).read_text(encoding="utf-8"))
    assert stored == json.loads(make().to_str())
