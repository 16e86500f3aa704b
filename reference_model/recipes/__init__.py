"""Models that Dragoman trains from scratch, by name."""

from typing import TYPE_CHECKING

from dragoman.errors import DragomanError

from ..lazy import lazy_attributes
from . import g2p_en, verses_en
from .examples import Example, read_examples, read_lines, write_examples
from .recipe import Data, Recipe

if TYPE_CHECKING:
    from .run import evaluate, run_recipe
else:
    __getattr__ = lazy_attributes(__name__, {"run": ("evaluate", "run_recipe")})

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (g2p_en.RECIPE, verses_en.RECIPE)}


def find_recipe(name: str) -> Recipe:
    """The recipe with this name.

    Raises:
        DragomanError: there is no such recipe; lists those there are.
    """
    if name not in RECIPES:
        raise DragomanError(f"unknown recipe {name!r}, expected one of: {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = [
    "RECIPES",
    "Data",
    "Example",
    "Recipe",
    "evaluate",
    "find_recipe",
    "read_examples",
    "read_lines",
    "run_recipe",
    "write_examples",
]
