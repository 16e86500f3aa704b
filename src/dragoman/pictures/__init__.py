"""Draws attention as a heat map, or as a page on which a layer and a head can be chosen."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import write_text, write_whole
from dragoman.runtime import Attention

Which = Literal["cross", "decoder", "encoder"]

MOST_CELLS = 4_000_000
"""The most weights of a page that browsers can open."""
CELL = 0.32
"""Inches of a cell."""
MOST_LABELS = 120


@dataclass(frozen=True)
class HeatMap:
    """The attention of all layers and heads, of one kind."""

    title: str
    weights: NDArray[np.float32]
    """[layers, heads, rows, columns]."""
    rows: tuple[str, ...]
    """The tokens that attend."""
    columns: tuple[str, ...]
    """The tokens that are attended to."""

    def chosen(self, layer: int | None, head: int | None) -> NDArray[np.float32]:
        """Select the weights [rows, columns] of a layer and a head, or their mean.

        Raises:
            DragomanError: there is no such layer or head.
        """
        chosen = self.weights
        for name, axis, number in (("layer", 0, layer), ("head", 1, head)):
            count = self.weights.shape[axis]
            if number is not None and not 0 <= number < count:
                raise DragomanError(f"{name}: expected 0 to {count - 1}, found {shown(number)}")
        if head is not None:
            chosen = chosen[:, head : head + 1]
        if layer is not None:
            chosen = chosen[layer : layer + 1]
        return np.asarray(chosen.mean(axis=(0, 1)))


def heat_maps(attention: Attention) -> dict[Which, HeatMap]:
    """Make the heat maps of a model, cross-attention first."""
    maps: dict[Which, HeatMap] = {}
    if attention.cross is not None:
        maps["cross"] = HeatMap(
            "target to source", attention.cross, attention.target, attention.source
        )
    if attention.decoder is not None:
        maps["decoder"] = HeatMap(
            "what the decoder reads", attention.decoder, attention.read, attention.read
        )
    if attention.encoder is not None:
        maps["encoder"] = HeatMap("source", attention.encoder, attention.source, attention.source)
    return maps


def choose(maps: Mapping[Which, HeatMap], which: Which | None) -> HeatMap:
    """Choose a heat map; None: the first.

    Raises:
        DragomanError: the model has no such attention.
    """
    if which is None:
        return next(iter(maps.values()))
    if which not in maps:
        raise DragomanError(
            f"which: expected {' or '.join(maps)}, which this model has, found {shown(which)}"
        )
    return maps[which]


def check_picture_name(path: Path) -> None:
    """Check that the name of a file has the suffix of a format that matplotlib writes.

    Raises:
        DragomanError: matplotlib does not write this format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    if _format(path) not in known:
        raise DragomanError(
            f"{path}: expected a name that ends in .html or in one of "
            f"{', '.join(f'.{name}' for name in known)}"
        )


def draw(picture: HeatMap, path: Path, *, layer: int | None, head: int | None) -> str:
    """Write a picture in the format of the file's suffix, whole or not at all.

    Returns:
        characters that no installed font has, which appear as boxes

    Raises:
        DragomanError: there is no such layer or head, matplotlib does not know the format, or the
            file cannot be written.
    """
    check_picture_name(path)
    weights = picture.chosen(layer, head)

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fonts = fonts_for([*picture.rows, *picture.columns])
    rows, columns = weights.shape
    size = (min(40.0, max(3.4, 2 + CELL * columns)), min(40.0, 1.8 + CELL * rows))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="viridis", vmin=0, vmax=max(float(weights.max()), 1e-6))
    _label(axes.set_xticks, picture.columns, fontfamily=fonts.families, rotation=90)
    _label(axes.set_yticks, picture.rows, fontfamily=fonts.families)
    chosen = f"{_name('layer', layer)}, {_name('head', head)}"
    figure.suptitle(f"{picture.title}\n{chosen}", fontsize=10)
    figure.colorbar(image, label="attention")
    with warnings.catch_warnings():  # one warning for each missing character
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        write_whole(path, lambda partial: figure.savefig(partial, format=_format(path), dpi=150))
    return fonts.missing


def write_page(attention: Attention, path: Path, *, title: str) -> None:
    """Write a page that needs no other file, whole or not at all.

    Raises:
        DragomanError: there are too many weights for a page, or the file cannot be written.
    """
    maps = heat_maps(attention)
    cells = sum(picture.weights.size for picture in maps.values())
    if cells > MOST_CELLS:
        raise DragomanError(
            f"{path}: expected at most {MOST_CELLS} weights for a page, found {cells}: write a "
            ".png of one layer"
        )
    plain = [
        {
            "title": picture.title,
            "rows": picture.rows,
            "columns": picture.columns,
            "weights": np.round(picture.weights.astype(np.float64), 4).tolist(),
        }
        for picture in maps.values()
    ]
    data = {"title": title, "maps": plain}
    template = files(__package__).joinpath("attention.html").read_text(encoding="utf-8")
    page = template.replace("/*DATA*/null", script_safe(json.dumps(data, ensure_ascii=False)))
    write_text(path, page)


def script_safe(text: str) -> str:
    """Escape JSON so that it cannot end a script element."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _format(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _name(what: str, number: int | None) -> str:
    return f"mean of {what}s" if number is None else f"{what} {number}"


def _label(set_ticks: Any, labels: tuple[str, ...], **options: Any) -> None:
    """Label an axis with its tokens, or with every n-th token."""
    step = -(-len(labels) // MOST_LABELS)
    places = range(0, len(labels), step)
    shown = [labels[place].replace("$", r"\$") for place in places]
    set_ticks(list(places), shown, fontsize=8, **options)


DEFAULT = "DejaVu Sans"
"""The font that comes with matplotlib."""
BOXES = "Last Resort"
"""The prefix of the name of matplotlib's font that has a box for every character."""


class Fonts(NamedTuple):
    """Fonts for some texts."""

    families: list[str]
    """Names of fonts, in the order of lookup."""
    missing: str
    """Characters that no font has, sorted."""


def fonts_for(texts: Iterable[str], *, first: str = DEFAULT) -> Fonts:
    """Choose installed fonts for all characters of texts, which matplotlib's own may lack.

    Args:
        first: the font to begin with
    """
    from matplotlib import font_manager

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
        if found and Path(_file(font.name)).samefile(font.fname):
            families.append(font.name)
            needed -= found
    return Fonts(families, "".join(sorted(needed)))


def _file(family: str) -> str:
    from matplotlib import font_manager

    return str(font_manager.findfont(font_manager.FontProperties(family=[family])))


@cache
def _characters(path: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # damaged fonts are ignored
        return frozenset()
