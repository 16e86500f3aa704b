"""Models that Dragoman trains from scratch, by name."""

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, shown
from dragoman.lazy import lazy_attributes

from . import bible_en_es, g2p_en, multi30k_en_de, verses_en
from .corpora import Corpus
from .examples import Cleaning, Example, read_examples, read_lines, write_examples
from .examples import describe as describe_cleaning
from .recipe import Data, Examples, Recipe, Tokenizers
from .translation import PairFiles, read_training_file

if TYPE_CHECKING:
    from .run import (
        InitialModel,
        RecipeResult,
        check_lengths,
        evaluate,
        read_initial_model,
        run_recipe,
    )
    from .tokenizers import Vocabulary
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "run": (
                *("InitialModel", "RecipeResult", "check_lengths"),
                *("evaluate", "read_initial_model", "run_recipe"),
            ),
            "tokenizers": ("Vocabulary",),
        },
    )

RECIPES: dict[str, Recipe] = {
    module.RECIPE.name: module.RECIPE for module in (g2p_en, verses_en, bible_en_es, multi30k_en_de)
}


def find_recipe(name: str) -> Recipe:
    """Find the recipe of a name.

    Raises:
        DragomanError: there is no such recipe; lists all recipes.
    """
    if name not in RECIPES:
        raise DragomanError(f"unknown recipe {shown(name)}, expected one of: {', '.join(RECIPES)}")
    return RECIPES[name]


def check_file_name(path: Path) -> None:
    """Check that a file which describes a training is not named like a recipe.

    Raises:
        DragomanError: it is; its models would be taken for those of the recipe.
    """
    if path.stem in RECIPES:
        raise DragomanError(
            f"{path}: expected a file of another name, found that of the recipe {path.stem}, "
            "whose models are judged in their own way"
        )


__all__ = [
    "RECIPES",
    "Cleaning",
    "Corpus",
    "Data",
    "Example",
    "Examples",
    "InitialModel",
    "PairFiles",
    "Recipe",
    "RecipeResult",
    "Tokenizers",
    "Vocabulary",
    "check_file_name",
    "check_lengths",
    "describe_cleaning",
    "evaluate",
    "find_recipe",
    "read_examples",
    "read_initial_model",
    "read_lines",
    "read_training_file",
    "run_recipe",
    "write_examples",
]
