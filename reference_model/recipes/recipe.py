"""What a recipe is, and how one is run: data in, a scored checkpoint out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from dragoman.errors import DragomanError

from ..checkpoint import save_checkpoint
from ..config import ModelConfig
from ..decoding import greedy_cached
from ..files import write_whole
from ..training import TrainingOptions, train
from ..transformer import Transformer

SOURCE_TOKENIZER_FILE = "source_tokenizer.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
HELD_OUT_FILE = "held_out.tsv"
RECIPE_FILE = "recipe.json"

DECODING_BATCH = 256


@dataclass(frozen=True)
class Example:
    """A source text and every target text that counts as right."""

    source: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Data:
    train: list[Example]
    validation: list[Example]
    held_out: list[Example]


Score = Callable[[Sequence[str], Sequence[Example]], dict[str, float]]
"""Hypotheses and the examples they answer -> figures by name, the recipe's metric first."""


@dataclass(frozen=True)
class Recipe:
    """A model that Dragoman can train from nothing."""

    name: str
    summary: str
    config: ModelConfig
    options: TrainingOptions
    load_data: Callable[[], Data]
    make_source_tokenizer: Callable[[], Tokenizer]
    make_target_tokenizer: Callable[[], Tokenizer]
    metric: str
    score: Score
    licences: Mapping[str, Callable[[], str]]
    """Licence texts of the data, by the name of the file they are written to."""


def run_recipe(recipe: Recipe, directory: Path, work: Path) -> dict[str, float]:
    """Train, score on held-out data, and write a checkpoint directory.

    Args:
        directory: where the checkpoint goes: configuration, weights, tokenizers, held-out data,
            figures, training curve, licences
        work: where the state of the training is kept, to resume from

    Returns:
        figures on the held-out data, by name
    """
    data = recipe.load_data()
    source, target = recipe.make_source_tokenizer(), recipe.make_target_tokenizer()
    pairs = [
        (source.encode(example.source).ids, target.encode(reference).ids)
        for example in data.train
        for reference in example.references
    ]
    torch.manual_seed(recipe.options.seed)
    model = Transformer(recipe.config)
    history = train(
        model,
        pairs,
        recipe.options,
        work,
        evaluate=lambda m: evaluate(m, recipe, data.validation)[recipe.metric],
        metric_name=recipe.metric,
    )
    figures = evaluate(model, recipe, data.held_out)
    save_checkpoint(model, directory)
    source.save(str(directory / SOURCE_TOKENIZER_FILE))
    target.save(str(directory / TARGET_TOKENIZER_FILE))
    write_examples(data.held_out, directory / HELD_OUT_FILE)
    for name, text in recipe.licences.items():
        (directory / name).write_text(text(), encoding="utf-8")
    record = {
        "recipe": recipe.name,
        "held_out": figures,
        "training": asdict(recipe.options) | {"steps": history[-1].step},
    }
    (directory / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for name in ("history.jsonl", "curve.png"):
        (directory / name).write_bytes((work / name).read_bytes())
    return figures


def evaluate(model: Transformer, recipe: Recipe, examples: Sequence[Example]) -> dict[str, float]:
    """The recipe's figures for the reference model's own greedy decoding."""
    source, target = recipe.make_source_tokenizer(), recipe.make_target_tokenizer()
    sources = [source.encode(example.source).ids for example in examples]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    hypotheses = [""] * len(sources)
    for first in range(0, len(order), DECODING_BATCH):
        batch = order[first : first + DECODING_BATCH]
        outputs = greedy_cached(
            model, [sources[i] for i in batch], recipe.config.max_target_positions
        )
        for index, output in zip(batch, outputs, strict=True):
            hypotheses[index] = target.decode(output)
    return recipe.score(hypotheses, examples)


def write_examples(examples: Iterable[Example], path: Path) -> None:
    """One example a line: the source, then every reference, separated by tabs.

    Raises:
        DragomanError: a text holds a tab or a line end, or the file cannot be written.
    """
    lines = []
    for example in examples:
        texts = (example.source, *example.references)
        if any(symbol in text for text in texts for symbol in "\t\n\r"):
            raise DragomanError(f"expected texts without tabs and line ends, found {texts!r}")
        lines.append("\t".join(texts) + "\n")
    write_whole(path, lambda partial: partial.write_text("".join(lines), "utf-8", newline="\n"))


def read_examples(path: Path) -> list[Example]:
    """Read what `write_examples` wrote; a source alone on its line has no reference.

    Raises:
        DragomanError: the file is missing, not UTF-8, or has an empty line.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
    except FileNotFoundError as error:
        raise DragomanError(f"expected a file of examples, found nothing at {path}") from error
    except OSError as error:
        raise DragomanError(f"{path}: expected a file of examples: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DragomanError(f"{path}: expected UTF-8 text: {error}") from error
    examples = []
    for number, line in enumerate(lines, start=1):
        source, *references = line.split("\t")
        if not source:
            raise DragomanError(f"{path}, line {number}: expected a source text, found none")
        examples.append(Example(source, tuple(references)))
    return examples
