"""Models that Dragoman trains from nothing, by name."""

from dragoman.errors import DragomanError

from . import g2p_en
from .recipe import Example, Recipe, evaluate, read_examples, run_recipe

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (g2p_en.RECIPE,)}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        DragomanError: there is none; lists those there are.
    """
    if name not in RECIPES:
        raise DragomanError(f"unknown recipe {name!r}, expected one of: {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = ["RECIPES", "Example", "Recipe", "evaluate", "find_recipe", "read_examples", "run_recipe"]
