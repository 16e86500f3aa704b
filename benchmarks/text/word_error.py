"""What a precision costs in quality: the word error of the shipped, trained model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from dragoman.errors import DragomanError

from ..harness import in_own_process
from ..models.bundles import optimized_bundle
from .contenders import BundleKind


def word_errors(bundles: Iterable[BundleKind], threads: int) -> dict[str, float]:
    """By contender, the share of held-out words that the shipped model gets wrong in its precision.

    Raises:
        DragomanError: a word was rejected.
    """
    return in_own_process(_word_errors, list(bundles), threads)


def _word_errors(bundles: list[BundleKind], threads: int) -> dict[str, float]:
    from dragoman.reference_model.pretrained import find_checkpoint
    from dragoman.reference_model.recipes import find_recipe, read_examples
    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
    from dragoman.runtime import load

    from ..shipped import MODEL, exported

    checkpoint, recipe = find_checkpoint(MODEL), find_recipe(MODEL)
    assert recipe.score is not None
    examples = read_examples(checkpoint / HELD_OUT_FILE)
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as workspace:
        neutral = exported(Path(workspace) / "neutral")
        for name, target, precision in bundles:
            directory = Path(workspace) / f"{target}-{precision}"
            bundle = optimized_bundle(neutral, directory, target=target, precision=precision)
            results = load(bundle, threads=threads).generate([e.source for e in examples])
            rejected = [result.error for result in results if result.error]
            if rejected:
                raise DragomanError(
                    f"{MODEL}: expected a result for every word, found {len(rejected)} rejected, "
                    f"the first with: {rejected[0]}"
                )
            texts = [result.text or "" for result in results]
            errors[name] = recipe.score(texts, examples)[recipe.metric]
    return errors
