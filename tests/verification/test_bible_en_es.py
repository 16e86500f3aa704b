"""The shipped model of translation: its bundle writes what the oracle does, as is recorded.

The suite takes a few verses, `make test-shipped` more, and all where figures are recorded.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import export_bundle
from dragoman.reference_model import Transformer, beam_search_uncached, greedy_uncached
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import bible_en_es, find_recipe, read_examples
from dragoman.runtime import load, translate_document
from dragoman.runtime.format.manifest import Precision
from dragoman.verification.inputs.choosing import inputs_for
from dragoman.verification.inputs.items import Comparison
from dragoman.verification.parity import check_parity

from .shipped_checkpoint import FILES, ShippedCheckpoint

VERSES = 1400
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "translation-bible-en-es.json"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> ShippedCheckpoint:
    return ShippedCheckpoint("bible-en-es", tmp_path_factory.mktemp("bible-en-es"))


@pytest.fixture(scope="module")
def oracle(shipped: ShippedCheckpoint) -> Transformer:
    assert isinstance(shipped.opened.model, Transformer)
    return shipped.opened.model


def test_the_held_out_verses_are_those_of_the_language_model(shipped: ShippedCheckpoint) -> None:
    """Both recipes split by chapters, verse for verse. That model read another edition of the same
    translation, with many other words."""
    others = read_examples(find_checkpoint("verses-en") / "held_out.tsv")
    assert len(shipped.held_out) == len(others) == VERSES
    alike = 0
    for example, other in zip(shipped.held_out, others, strict=True):
        found, expected = words(example.source), words(other.source + other.references[0])
        alike += 2 * len(found & expected) > len(found | expected)
    assert alike > 0.95 * VERSES


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def test_tags_land_on_the_words_that_they_mark(shipped: ShippedCheckpoint, tmp_path: Path) -> None:
    """King and rey, servants and siervos, ...: judged by hand."""
    opened = shipped.opened
    export_bundle(opened.model, tmp_path, name="b", tokenizers=opened.tokenizers, attention=True)
    with load(tmp_path, threads=1) as model:
        found = [translate_document(model, html, "html").text for html in TAGGED]
    assert found == list(TAGGED.values())


TAGGED = {
    "<p>The <b>king</b> made a great feast.</p>": "<p>Y el <b>rey</b> hizo gran banquete.</p>",
    'The king made a <a href="x">great feast</a> for <i>all his servants</i>.': (
        'Y el rey hizo gran <a href="x">banquete</a> á <i>todos sus siervos</i>.'
    ),
    "And he went up into a <b>mountain</b> to <i>pray</i>.": (
        "Y subiendo en <b>un monte</b> á <i>orar</i>."
    ),
}
"""HTML and its translation."""


@pytest.mark.parametrize("verses", [7, pytest.param(50, marks=pytest.mark.shipped)])
def test_every_token_is_the_oracles(
    verses: int, oracle: Transformer, shipped: ShippedCheckpoint
) -> None:
    model = shipped.bundle("fp32")
    chosen = shipped.held_out[:: VERSES // verses]
    sources = [model.tokenize(example.source) for example in chosen]
    limit = model.manifest.default_max_new_tokens
    found = [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in model.generate(sources)
    ]
    assert len(found) == verses and found == greedy_uncached(oracle, sources, limit)


@pytest.mark.parametrize("verses", [2, pytest.param(7, marks=pytest.mark.shipped)])
def test_beams_are_the_oracles(
    verses: int, oracle: Transformer, shipped: ShippedCheckpoint
) -> None:
    model = shipped.bundle("fp32")
    shortest = sorted(shipped.held_out, key=lambda example: len(example.source))[::100][:verses]
    sources = [model.tokenize(example.source) for example in shortest]
    settings = replace(oracle.generation, num_beams=4)
    expected = beam_search_uncached(oracle, sources, 60, generation=settings)
    found = model.generate(sources, num_beams=4, max_new_tokens=60)
    for result, (best, *_) in zip(found, expected, strict=True):
        end = [] if result.end_token is None else [result.end_token]
        assert (*result.tokens, *end) == best.tokens
        assert result.score == pytest.approx(best.score, abs=1e-4)


@pytest.mark.parametrize(
    ("precision", "verses"),
    [
        ("int8", 4),
        pytest.param("fp32", 40, marks=pytest.mark.shipped),
        pytest.param("int8", 40, marks=pytest.mark.shipped),
        pytest.param("int4", 40, marks=pytest.mark.shipped),
    ],
)
def test_parity(precision: Precision, verses: int, shipped: ShippedCheckpoint) -> None:
    """In fp32 as a whole. Below it the BLEU of so few verses is mostly chance, other than what is
    predicted."""
    inputs = inputs_for(shipped.opened, Comparison(limit=verses))
    parity = check_parity(
        shipped.bundle(precision), shipped.opened.model, inputs, backend="onnxruntime"
    )
    assert [task.metric for task in parity.tasks] == ["BLEU", "chrF"]
    assert parity.references is not None and parity.references.pairs == verses
    assert parity.references.passed
    assert parity.distributions is not None and parity.distributions.passed
    if precision == "fp32":
        assert parity.passed
        assert parity.tokens.identical == parity.tokens.sequences == verses


@pytest.mark.shipped
def test_the_figures_are_the_recorded_ones(shipped: ShippedCheckpoint) -> None:
    """Those of the checkpoint, from PyTorch, and of the benchmark, from another bundle."""
    outputs = shipped.bundle("fp32").generate([example.source for example in shipped.held_out])
    assert all(result.finish_reason == "end" for result in outputs)
    recipe = find_recipe("bible-en-es")
    assert recipe.score is not None
    found = recipe.score([str(result.text) for result in outputs], shipped.held_out)
    assert found == pytest.approx(shipped.record["held_out"], abs=0.02)
    (measured,) = (
        figure["scores"]
        for figure in json.loads(RECORD.read_text(encoding="utf-8"))["figures"]
        if (figure["precision"], figure["beams"]) == ("fp32", 1)
    )
    assert [found["BLEU"], found["chrF"]] == pytest.approx(
        [measured["bleu"], measured["chrf"]], abs=0.02
    )


def test_the_checkpoint_is_complete_and_small(
    oracle: Transformer, shipped: ShippedCheckpoint
) -> None:
    recipe = find_recipe("bible-en-es")
    assert shipped.record["recipe"] == recipe.name
    assert oracle.config == recipe.config
    assert (shipped.directory / "model.safetensors").stat().st_size <= 16_000_000
    licence = (shipped.directory / "LICENSE-Bibles.txt").read_text(encoding="utf-8")
    assert licence == bible_en_es.PUBLIC_DOMAIN and "public domain" in licence
    assert shipped.files == FILES | {"LICENSE-Bibles.txt"}
