"""What a precision costs, on the trained model that comes along: quality stands beside speed."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from dragoman.errors import DragomanError

from .contenders import optimized
from .shipped import MODEL, exported


def word_errors(bundles: Iterable[tuple[str, str, str]], threads: int) -> dict[str, float]:
    """By name of the contender, the share of held-out words that the shipped model gets wrong.

    Computed in a process of its own, that gives back its memory.

    Args:
        bundles: name, target and precision of each
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as executor:
        return executor.submit(_word_errors, list(bundles), threads).result()


def _word_errors(bundles: list[tuple[str, str, str]], threads: int) -> dict[str, float]:
    from dragoman.reference_model.pretrained import find_checkpoint
    from dragoman.reference_model.recipes import find_recipe, read_examples
    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
    from dragoman.runtime import load

    checkpoint, recipe = find_checkpoint(MODEL), find_recipe(MODEL)
    examples = read_examples(checkpoint / HELD_OUT_FILE)
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        neutral = exported(Path(place) / "neutral")
        for name, target, precision in bundles:
            directory = Path(place) / f"{target}-{precision}"
            model = load(
                optimized(neutral, directory, target=target, precision=precision), threads=threads
            )
            results = model.generate([example.source for example in examples])
            rejected = [result.error for result in results if result.error]
            if rejected:
                raise DragomanError(f"{MODEL}: {len(rejected)} words were rejected: {rejected[0]}")
            texts = [result.text or "" for result in results]
            errors[name] = recipe.score(texts, examples)[recipe.metric]
    return errors
