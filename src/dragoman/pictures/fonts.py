"""Fonts of this machine that have what tokens are written with: matplotlib's own has no Chinese."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"
"""Matplotlib's own, which it brings along."""
BOXES = "Last Resort"
"""The name of a font, of which matplotlib brings a copy, begins so: it has a box for everything."""


class Fonts(NamedTuple):
    """
    Attributes:
        families: names of fonts, in the order in which a character is looked up
        missing: characters that none of them has, sorted
    """

    families: list[str]
    missing: str


def fonts_for(texts: Iterable[str], *, first: str = DEFAULT) -> Fonts:
    """The fewest fonts that come to hand, after the first, for all characters of texts."""
    wanted = {character for text in texts for character in text if character.isprintable()}
    families = [first]
    wanted -= _characters(_file(first))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if not wanted:
            break
        if font.name in families or font.name.startswith(BOXES):
            continue
        found = wanted & _characters(font.fname)
        # Fonts are chosen by the names of families: it must be the one that the name finds.
        if found and _file(font.name) == font.fname:
            families.append(font.name)
            wanted -= found
    return Fonts(families, "".join(sorted(wanted)))


def _file(family: str) -> str:
    return str(font_manager.findfont(font_manager.FontProperties(family=[family])))


@cache
def _characters(path: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # a damaged font of this machine is none
        return frozenset()
