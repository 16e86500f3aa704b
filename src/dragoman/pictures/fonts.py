"""Finds installed fonts for the characters of tokens, which matplotlib's own may lack."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"
"""The font that comes with matplotlib."""
BOXES = "Last Resort"
"""The prefix of the name of matplotlib's font that has a box for every character."""


class Fonts(NamedTuple):
    """Fonts for some texts.

    Attributes:
        families: names of fonts, in the order of lookup
        missing: characters that no font has, sorted
    """

    families: list[str]
    missing: str


def fonts_for(texts: Iterable[str], *, first: str = DEFAULT) -> Fonts:
    """Choose fonts for all characters of texts, beginning with the first."""
    needed = {character for text in texts for character in text if character.isprintable()}
    families = [first]
    needed -= _characters(_file(first))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if not needed:
            break
        if font.name in families or font.name.startswith(BOXES):
            continue
        found = needed & _characters(font.fname)
        # Matplotlib selects fonts by family: the name must find this file.
        if found and _file(font.name) == font.fname:
            families.append(font.name)
            needed -= found
    return Fonts(families, "".join(sorted(needed)))


def _file(family: str) -> str:
    return str(font_manager.findfont(font_manager.FontProperties(family=[family])))


@cache
def _characters(path: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # damaged fonts are ignored
        return frozenset()
