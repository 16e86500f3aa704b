"""Texts to translate, and what others made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.reference_model.recipes import multi30k_en_de, read_examples
from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE

PUBLISHED = {
    "test_2016_flickr": 41.02,
    "test_2017_flickr": 33.36,
    "test_2017_mscoco": 29.88,
}
"""BLEU of lower-cased tokens of the text-only Transformer of the same size, 5 beams, the last ten
checkpoints averaged (Wu et al. 2021, arXiv 2105.14462)."""


@dataclass(frozen=True)
class HeldOut:
    """
    Attributes:
        references: of each source, as it is scored
        tokenized: the references as lower-cased tokens with spaces between them, in which the model
            was trained; none: it was trained on texts
        language: of the targets
        published: BLEU on tokens, by others
    """

    name: str
    sources: Sequence[str]
    references: Sequence[str]
    language: str
    tokenized: Sequence[str] = ()
    published: float | None = None


def held_out_sets(recipe: str, checkpoint: Path, data: Path | None) -> list[HeldOut]:
    """What a recipe's model is judged on.

    Args:
        data: the folder of Multi30k, whose recipe needs it

    Raises:
        DragomanError: there is no such set, or its folder is missing.
    """
    if recipe != multi30k_en_de.RECIPE.name:
        examples = read_examples(checkpoint / HELD_OUT_FILE)
        return [
            HeldOut(
                "held out",
                [example.source for example in examples],
                [example.references[0] for example in examples],
                recipe.rpartition("-")[2],
            )
        ]
    if data is None:
        raise DragomanError(f"{recipe}: its data are needed: --data FOLDER")
    sets = []
    for name in multi30k_en_de.TESTS:
        examples = multi30k_en_de.read_set(data, name)
        sets.append(
            HeldOut(
                name,
                [example.source for example in examples],
                multi30k_en_de.read_lines_of(data, f"{name}.{multi30k_en_de.TARGET}"),
                multi30k_en_de.TARGET,
                [example.references[0] for example in examples],
                PUBLISHED[name],
            )
        )
    return sets
