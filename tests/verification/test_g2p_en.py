"""The shipped model: its bundle gives the oracle's phonemes for every held-out word.

The suite takes every fortieth word, `make test-shipped` all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import TokenizerFiles, export_bundle
from dragoman.export.checkpoints import open_checkpoint
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import Transformer, greedy_uncached, load_checkpoint
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, find_recipe, g2p_en, read_examples
from dragoman.runtime import Model, Result, load

from .shipped_checkpoint import FILES

WORDS = 11_548
BATCH = 256


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return find_checkpoint("g2p-en")


@pytest.fixture(scope="session")
def oracle(checkpoint: Path) -> Transformer:
    model = load_checkpoint(checkpoint)
    assert isinstance(model, Transformer)
    return model


@pytest.fixture(scope="session")
def held_out(checkpoint: Path) -> list[Example]:
    return read_examples(checkpoint / "held_out.tsv")


@pytest.fixture(scope="session")
def pronouncer(
    checkpoint: Path, oracle: Transformer, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    directory = tmp_path_factory.mktemp("g2p-en")
    files = TokenizerFiles(
        checkpoint / "source_tokenizer.json", checkpoint / "target_tokenizer.json"
    )
    export_bundle(oracle, directory, name="g2p-en", tokenizers=files)
    return load(directory)


@pytest.fixture(scope="session", params=[40, pytest.param(1, marks=pytest.mark.shipped)])
def words(request: pytest.FixtureRequest, held_out: list[Example]) -> list[Example]:
    return held_out[:: request.param]


@pytest.fixture(scope="session")
def results(pronouncer: Model, words: list[Example]) -> list[Result]:
    return pronouncer.generate([example.source for example in words])


@pytest.fixture(scope="session")
def record(checkpoint: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((checkpoint / "recipe.json").read_text(encoding="utf-8"))
    return record


def test_the_held_out_words_are_those_of_the_recipes_split(held_out: list[Example]) -> None:
    data = g2p_en.load_data()
    assert len(held_out) == WORDS
    assert held_out == data.held_out
    assert not {e.source for e in held_out} & {e.source for e in (*data.train, *data.validation)}


def test_the_recipe_names_the_heads_that_align() -> None:
    model = open_checkpoint(locate_checkpoint("g2p-en")).model
    assert isinstance(model, Transformer)
    assert model.generation.alignment_heads == ((1, 0), (1, 1), (1, 2), (1, 3))


def test_every_token_of_every_word_is_the_oracles(
    oracle: Transformer, pronouncer: Model, words: list[Example], results: list[Result]
) -> None:
    sources = [pronouncer.tokenize(example.source) for example in words]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    end = oracle.config.end_token_id
    limit = pronouncer.manifest.default_max_new_tokens
    differing = []
    for first in range(0, len(order), BATCH):
        batch = order[first : first + BATCH]
        expected = greedy_uncached(oracle, [sources[i] for i in batch], limit)
        for index, row in zip(batch, expected, strict=True):
            result = results[index]
            found = [*result.tokens, end] if result.finish_reason == "end" else [*result.tokens]
            if found != row:
                differing.append((words[index].source, row, found))
    assert differing == []


def test_word_error_is_the_recorded_one(
    words: list[Example], results: list[Result], record: dict[str, Any]
) -> None:
    """The figure of a sample is within three standard deviations."""
    figures = g2p_en.score([str(result.text) for result in results], words)
    expected = record["held_out"]
    if len(words) == WORDS:
        assert figures == expected
    assert figures["word error"] == pytest.approx(expected["word error"], abs=0.08)
    assert expected["word error"] <= 0.302


def test_every_word_ends_by_itself(results: list[Result]) -> None:
    """But for one in a hundred at most, that the model babbles on."""
    assert sum(result.finish_reason != "end" for result in results) <= len(results) / 100
    assert all(result.error is None for result in results)


def test_text_and_tokens_say_the_same(results: list[Result]) -> None:
    tokenizer = g2p_en.make_target_tokenizer()
    for result in results:
        assert result.text == tokenizer.decode(list(result.tokens))


def test_the_checkpoint_is_complete_and_small(
    checkpoint: Path, oracle: Transformer, record: dict[str, Any]
) -> None:
    recipe = find_recipe("g2p-en")
    assert record["recipe"] == recipe.name
    assert oracle.config == recipe.config
    assert (checkpoint / "model.safetensors").stat().st_size <= 12_000_000
    licence = (checkpoint / "LICENSE-CMUdict.txt").read_text(encoding="utf-8")
    assert licence == g2p_en.licence() and "Carnegie Mellon" in licence
    for name in ("history.jsonl", "curve.png"):
        assert (checkpoint / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("source_tokenizer.json", g2p_en.make_source_tokenizer),
        ("target_tokenizer.json", g2p_en.make_target_tokenizer),
    ],
)
def test_the_tokenizers_are_the_recipes(
    checkpoint: Path, file: str, make: Callable[[], Any]
) -> None:
    stored = json.loads((checkpoint / file).read_text(encoding="utf-8"))
    assert stored == json.loads(make().to_str())


def test_the_folder_contains_no_other_files(checkpoint: Path) -> None:
    assert {path.name for path in checkpoint.iterdir()} == FILES | {"LICENSE-CMUdict.txt"}
