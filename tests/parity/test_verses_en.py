"""The shipped language model: its bundle continues held-out verses as the oracle does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.benchmarks.parity import check_parity, inputs_for
from dragoman.comparison import Comparison
from dragoman.export.locating import locate_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.export.opened_checkpoint import OpenedCheckpoint, open_checkpoint
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import LanguageModel, greedy_uncached
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, find_recipe, read_examples, verses_en
from dragoman.runtime import Model, load, perplexity

VERSES = 1400
CONTINUED = 8
NEW = 40


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    return find_checkpoint("verses-en")


@pytest.fixture(scope="module")
def opened() -> OpenedCheckpoint:
    return open_checkpoint(locate_checkpoint("verses-en"))


@pytest.fixture(scope="module")
def held_out(checkpoint: Path) -> list[Example]:
    return read_examples(checkpoint / "held_out.tsv")


@pytest.fixture(scope="module")
def record(checkpoint: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((checkpoint / "recipe.json").read_text(encoding="utf-8"))
    return record


@pytest.fixture(scope="module")
def bundle(
    opened: OpenedCheckpoint, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Any], Model]:
    directory = tmp_path_factory.mktemp("verses-en")
    (directory / "neutral").mkdir()
    neutral = export_bundle(
        opened.model, directory / "neutral", name=opened.name, tokenizers=opened.tokenizers
    )

    def bundle(precision: Any) -> Model:
        (directory / precision).mkdir(exist_ok=True)
        if not any((directory / precision).iterdir()):
            optimize_bundle(neutral, directory / precision, target="cpu", precision=precision)
        return load(directory / precision, threads=1)

    return bundle


def whole(example: Example) -> str:
    return example.source + example.references[0]


def test_the_held_out_verses_are_those_of_the_recipes_split(held_out: list[Example]) -> None:
    assert len(held_out) == VERSES
    assert held_out == verses_en.load_data().held_out


def test_every_token_is_the_oracles(
    opened: OpenedCheckpoint, bundle: Callable[[Any], Model], held_out: list[Example]
) -> None:
    assert isinstance(opened.model, LanguageModel)
    model, chosen = bundle("fp32"), [example.source for example in held_out[::28]]
    expected = greedy_uncached(opened.model, [model.tokenize(text) for text in chosen], NEW)
    found = [
        [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        for result in model.generate(chosen, max_new_tokens=NEW)
    ]
    assert len(found) == 50 and found == expected


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_parity(precision: str, opened: OpenedCheckpoint, bundle: Callable[[Any], Model]) -> None:
    """On verses that it has not seen: numbers, outputs, and how probable the real rests are."""
    inputs = inputs_for(opened, Comparison(limit=CONTINUED))
    parity = check_parity(bundle(precision), opened.model, inputs, backend="onnxruntime")
    assert parity.passed
    assert parity.tasks == ()  # it is judged by the probability of references
    assert parity.references is not None and parity.references.pairs == CONTINUED
    if precision == "fp32":
        assert parity.tokens.identical == parity.tokens.sequences == CONTINUED


def test_perplexity_is_the_recorded_one(
    bundle: Callable[[Any], Model], held_out: list[Example], record: dict[str, Any]
) -> None:
    """Of whole verses: what the trained model had, from the runtime."""
    scored = bundle("fp32").score([whole(example) for example in held_out], end_token=True)
    assert perplexity(scored) == pytest.approx(record["held_out"]["perplexity"], rel=1e-5)
    assert record["held_out"]["perplexity"] < 20
    lines = (find_checkpoint("verses-en") / "history.jsonl").read_text(encoding="utf-8")
    validation = [json.loads(line)["metric"] for line in lines.splitlines()]
    assert validation == sorted(validation, reverse=True)  # it never got worse


def test_outputs_are_verses(bundle: Callable[[Any], Model], held_out: list[Example]) -> None:
    """They go on where the prompt ends, with a space or a comma, and most end by themselves."""
    results = bundle("fp32").generate([e.source for e in held_out[::20]], do_sample=True, seed=1)
    assert all(result.error is None for result in results)
    assert sum(result.finish_reason == "end" for result in results) > 0.9 * len(results)
    assert sum(result.text[:1] in (" ", ",") for result in results if result.text) > 60


def test_the_checkpoint_is_complete_and_small(
    checkpoint: Path, opened: OpenedCheckpoint, record: dict[str, Any]
) -> None:
    recipe = find_recipe("verses-en")
    assert record["recipe"] == recipe.name == opened.name
    assert isinstance(opened.model, LanguageModel) and opened.model.config == recipe.config
    assert (checkpoint / "model.safetensors").stat().st_size <= 8_000_000
    licence = (checkpoint / "LICENSE-World-English-Bible.txt").read_text(encoding="utf-8")
    assert licence == verses_en.PUBLIC_DOMAIN and "public domain" in licence
    assert {path.name for path in checkpoint.iterdir()} == {
        "LICENSE-World-English-Bible.txt",
        "README.md",
        "config.json",
        "curve.png",
        "held_out.tsv",
        "history.jsonl",
        "model.safetensors",
        "recipe.json",
        "source_tokenizer.json",
        "target_tokenizer.json",
    }


@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("source_tokenizer.json", verses_en.make_source_tokenizer),
        ("target_tokenizer.json", verses_en.make_target_tokenizer),
    ],
)
def test_the_tokenizers_are_the_recipes(
    checkpoint: Path, file: str, make: Callable[[], Any]
) -> None:
    stored = json.loads((checkpoint / file).read_text(encoding="utf-8"))
    assert stored == json.loads(make().to_str())
