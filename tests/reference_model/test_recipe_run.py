"""Running a recipe, from its data to a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from dragoman import DragomanError
from dragoman.cli.building import train as train_command
from dragoman.reference_model import (
    ModelConfig,
    Transformer,
    decoding,
    greedy_uncached,
    load_checkpoint,
)
from dragoman.reference_model.decoding import decoded
from dragoman.reference_model.recipes import (
    RECIPES,
    Data,
    Example,
    Recipe,
    evaluate,
    find_recipe,
    g2p_en,
    read_examples,
    run_recipe,
    verses_en,
)
from dragoman.reference_model.training import TrainingOptions

WORDS = [f"{first}{vowel}{last}" for first in "bdkpt" for vowel in "aeiou" for last in "nt"]
SOUNDS = {"a": "AE", "e": "EH", "i": "IH", "o": "AA", "u": "AH"}


def pronounce(word: str) -> Example:
    vowel = word[1]
    sounds = f"{word[0].upper()} {SOUNDS[vowel]} {word[2].upper()}"
    # One word in five has a second pronunciation.
    return Example(word, (sounds, sounds + " AH") if vowel == "u" else (sounds,))


def load_data(folder: Path | None = None) -> Data:
    examples = [pronounce(word) for word in WORDS]
    return Data(examples[:38], examples[38:43], examples[43:])


TOKENIZERS = g2p_en.RECIPE.make_tokenizers(load_data())


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        name="micro",
        summary="a few words",
        config=ModelConfig(
            source_vocab_size=29,
            target_vocab_size=42,
            encoder_layers=1,
            decoder_layers=1,
            d_model=16,
            num_heads=2,
            d_ff=24,
            max_source_positions=8,
            max_target_positions=6,
        ),
        options=TrainingOptions(epochs=1, batch_tokens=64, warmup_steps=10),
        load_data=load_data,
        make_tokenizers=g2p_en.RECIPE.make_tokenizers,
        metric="word error",
        score=g2p_en.score,
        licences={"LICENSE-words.txt": lambda: "Free as the air.\n"},
    )


def test_a_run_writes_a_complete_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "model"
    figures = run_recipe(recipe, load_data(), directory, tmp_path / "work").figures
    assert sorted(file.name for file in directory.iterdir()) == [
        "LICENSE-words.txt",
        "config.json",
        "curve.png",
        "held_out.tsv",
        "history.jsonl",
        "model.safetensors",
        "recipe.json",
        "source_tokenizer.json",
        "target_tokenizer.json",
    ]
    assert figures.keys() == {"word error", "phone error"}

    model = load_checkpoint(directory)
    assert isinstance(model, Transformer)
    assert model.config == recipe.config
    assert evaluate(model, recipe, TOKENIZERS, load_data().held_out) == figures

    source = Tokenizer.from_file(str(directory / "source_tokenizer.json"))
    target = Tokenizer.from_file(str(directory / "target_tokenizer.json"))
    assert source.encode("Bat").ids == [4, 3, 22, 2]
    assert target.decode(target.encode("B AE T").ids) == "B AE T"

    assert read_examples(directory / "held_out.tsv") == load_data().held_out
    assert (directory / "LICENSE-words.txt").read_text(encoding="utf-8") == "Free as the air.\n"
    assert (directory / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    history = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads((directory / "recipe.json").read_text(encoding="utf-8"))
    assert record["recipe"] == "micro"
    assert record["held_out"] == figures
    steps = json.loads(history[-1])["step"]
    options = asdict(recipe.options) | {"steps": steps, "adam_betas": [0.9, 0.98]}
    assert record["training"] == options


def test_a_run_is_determined_by_its_seed(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run_recipe(recipe, load_data(), tmp_path / name, tmp_path / f"work-{name}")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_outputs_go_as_far_as_the_model_does(recipe: Recipe, tmp_path: Path) -> None:
    """Targets may be many times as long as sources, and what shares a batch does not matter."""
    config = recipe.config.replace(max_target_positions=48)
    data = replace(
        load_data(), held_out=[pronounce(word) for word in ("bat", "papa", "pin", "tod")]
    )
    long = replace(recipe, config=config, score=lambda texts, _: {"word error": len(texts[0])})
    torch.manual_seed(41)
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 if parameter.dim() == 1 else 2)
    sources = [TOKENIZERS.source.encode(example.source).ids for example in data.held_out]
    expected = [greedy_uncached(model, [source], 48)[0] for source in sources]
    assert [len(output) for output in expected] == [48, 2, 3, 48]
    assert decoded(model, sources) == expected
    for source, output in zip(sources, expected, strict=True):
        assert decoded(model, [source]) == [output]
    figures = evaluate(model, long, TOKENIZERS, data.held_out)
    assert figures == {"word error": len(TOKENIZERS.target.decode(expected[0]))}

    result = run_recipe(long, data, tmp_path / "model", tmp_path / "work")
    trained = load_checkpoint(tmp_path / "model")
    assert isinstance(trained, Transformer)
    outputs = greedy_uncached(trained, sources, 48)
    assert result.at_the_limit == sum(output[-1] != config.end_token_id for output in outputs)
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    assert record["outputs reached the limit"] == result.at_the_limit
    assert [c["name"] for c in record["candidates"]] == ["last"]
    assert record["candidates"][0]["delivered"] is True


@pytest.mark.parametrize("decoding_batch", [1, 2, 256])
def test_evaluation_keeps_the_order_of_the_examples(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, decoding_batch: int
) -> None:
    """Examples are decoded in the order of their lengths and scored in their original order."""
    answered: list[tuple[list[str], list[str]]] = []

    def first_letter(model: object, sources: list[list[int]], limit: int) -> list[list[int]]:
        """Instead of a model: the phoneme with the index of the first letter, and the end."""
        assert limit == 6  # the capacity
        return [[source[0], 2] for source in sources]

    def record(hypotheses: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        answered.append((list(hypotheses), [example.source for example in examples]))
        return {"word error": 0.5}

    monkeypatch.setattr(decoding, "greedy_cached", first_letter)
    monkeypatch.setattr(decoding, "DECODING_BATCH", decoding_batch)
    words = ["dragon", "a", "cab", "be", "cabbage"]
    examples = [Example(word, ("AA",)) for word in words]
    figures = evaluate(
        Transformer(recipe.config), replace(recipe, score=record), TOKENIZERS, examples
    )
    assert figures == {"word error": 0.5}
    # Phonemes are indexed in the order AA AE AH AO, like the letters.
    assert answered == [(["AO", "AA", "AH", "AE", "AH"], words)]


def test_recipes_are_found_by_name() -> None:
    assert find_recipe("g2p-en") is g2p_en.RECIPE
    assert find_recipe("verses-en") is verses_en.RECIPE
    assert [*RECIPES] == [recipe.name for recipe in RECIPES.values()]
    assert [*RECIPES] == ["g2p-en", "verses-en", "bible-en-es", "multi30k-en-de"]


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(
        DragomanError, match="unknown recipe 'g2p', expected one of: g2p-en, verses-en, bible"
    ):
        find_recipe("g2p")


def test_the_licence_is_that_of_cmudict() -> None:
    (name,) = g2p_en.RECIPE.licences
    assert name == "LICENSE-CMUdict.txt"
    assert "Carnegie Mellon University" in g2p_en.RECIPE.licences[name]()


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_how_long_it_takes(name: str) -> None:
    """The same in the help of `dragoman train` and in the guide."""
    duration = RECIPES[name].duration
    assert duration
    command = Path(train_command.__file__).read_text(encoding="utf-8")
    assert re.search(rf"^    {name} +\S.*: {duration}$", command, re.MULTILINE)
    guide = (Path(__file__).parents[2] / "docs/guides/training.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{name}` \|.*\| {duration} \|$", guide, re.MULTILINE)
