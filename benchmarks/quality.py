"""What a precision costs, on the trained model that comes along: quality stands beside speed."""

from __future__ import annotations

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import cast

from dragoman.errors import DragomanError
from dragoman.runtime.manifest import Precision, Target

MODEL = "g2p-en"


def word_error(target: Target, precision: Precision, threads: int) -> float:
    """The share of held-out words that the shipped model gets wrong, in a bundle made for this.

    Computed in a process of its own, that gives back its memory.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(_word_error, target, precision, threads).result()


def _word_error(target: Target, precision: Precision, threads: int) -> float:
    from dragoman.export import TokenizerFiles, export_bundle
    from dragoman.optimize.bundle import optimize_bundle
    from dragoman.reference_model import load_checkpoint
    from dragoman.reference_model.pretrained import find_checkpoint
    from dragoman.reference_model.recipes import find_recipe, read_examples
    from dragoman.reference_model.recipes.recipe import (
        HELD_OUT_FILE,
        SOURCE_TOKENIZER_FILE,
        TARGET_TOKENIZER_FILE,
    )
    from dragoman.runtime import load, read_bundle

    checkpoint, recipe = find_checkpoint(MODEL), find_recipe(MODEL)
    examples = read_examples(checkpoint / HELD_OUT_FILE)
    files = TokenizerFiles(checkpoint / SOURCE_TOKENIZER_FILE, checkpoint / TARGET_TOKENIZER_FILE)
    with tempfile.TemporaryDirectory() as place:
        neutral, directory = Path(place) / "neutral", Path(place) / "optimized"
        neutral.mkdir()
        export_bundle(load_checkpoint(checkpoint), neutral, name=MODEL, tokenizers=files)
        if (target, precision) == ("neutral", "fp32"):
            directory = neutral
        else:
            directory.mkdir()
            optimize_bundle(read_bundle(neutral), directory, target=target, precision=precision)
        model = load(directory, threads=threads)
        results = model.generate([example.source for example in examples])
    rejected = [result.error for result in results if result.error]
    if rejected:
        raise DragomanError(f"{MODEL}: {len(rejected)} words were rejected: {rejected[0]}")
    return recipe.score([result.text or "" for result in results], examples)[recipe.metric]


def word_errors(
    bundles: tuple[tuple[str, str, str], ...], chosen: set[str], threads: int
) -> dict[str, float]:
    """By name of the contender."""
    return {
        name: word_error(cast(Target, target), cast(Precision, precision), threads)
        for name, target, precision in bundles
        if name in chosen
    }
