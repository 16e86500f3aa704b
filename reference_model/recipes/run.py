"""Running a recipe: from its data to a scored checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from ..checkpoint import save_checkpoint
from ..decoding import greedy_cached
from ..language_model import LanguageModel
from ..models import make_model
from ..training import train
from ..training.batching import Pair
from ..training.teacher_forcing import Trainable
from ..transformer import Transformer
from .examples import Example, write_examples
from .perplexity import perplexity, whole_texts
from .recipe import (
    HELD_OUT_FILE,
    RECIPE_FILE,
    SOURCE_TOKENIZER_FILE,
    TARGET_TOKENIZER_FILE,
    Recipe,
)

DECODING_BATCH = 256
"""Examples decoded at once."""


def run_recipe(recipe: Recipe, directory: Path, work: Path) -> dict[str, float]:
    """Train, score on held-out data, and write a checkpoint directory.

    Args:
        directory: of the checkpoint: configuration, weights, tokenizers, held-out data, figures,
            training curve, licences
        work: where the training state is kept, so that an interrupted run can resume

    Returns:
        figures on the held-out data, by name

    Raises:
        DragomanError: the data cannot be loaded, a file cannot be written, or `work` holds the
            state of another training.
    """
    data = recipe.load_data()
    source, target = recipe.make_source_tokenizer(), recipe.make_target_tokenizer()
    torch.manual_seed(recipe.options.seed)
    model = make_model(recipe.config)
    assert isinstance(model, Trainable)
    history = train(
        model,
        training_pairs(recipe, data.train),
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


def training_pairs(recipe: Recipe, examples: Sequence[Example]) -> list[Pair]:
    """Each source with each of its references; whole texts for a language model."""
    source, target = recipe.make_source_tokenizer(), recipe.make_target_tokenizer()
    if not recipe.config.has_encoder:
        return whole_texts(examples, target)
    return [
        (source.encode(example.source).ids, target.encode(reference).ids)
        for example in examples
        for reference in example.references
    ]


def evaluate(model: Trainable, recipe: Recipe, examples: Sequence[Example]) -> dict[str, float]:
    """The recipe's figures, by name: of outputs, or the perplexity of a language model."""
    if isinstance(model, LanguageModel):
        return perplexity(model, examples, recipe.make_target_tokenizer())
    assert recipe.score is not None
    return recipe.score(_outputs(model, recipe, examples), examples)


def _outputs(model: Transformer, recipe: Recipe, examples: Sequence[Example]) -> list[str]:
    """Greedy outputs of the reference model, in the examples' order; sources of similar length are
    decoded together."""
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
    return hypotheses
