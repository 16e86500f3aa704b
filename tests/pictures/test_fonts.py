"""Characters that matplotlib's own font lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import font_manager

from dragoman.pictures import DEFAULT, HeatMap, draw, fonts_for


@pytest.fixture(autouse=True)
def _only_the_fonts_of_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = font_manager.fontManager
    own = [font for font in manager.ttflist if "mpl-data" in font.fname]
    monkeypatch.setattr(manager, "ttflist", own)


def test_only_the_first_font_where_it_has_everything() -> None:
    assert fonts_for(["straße", "Ж", "▁the", "Ġ", "</s>"]) == ([DEFAULT], "")
    assert fonts_for([]) == ([DEFAULT], "")


def test_other_fonts_for_what_it_lacks() -> None:
    families, missing = fonts_for(["abc", "Ж"], first="cmr10")  # TeX's letters
    assert families[0] == "cmr10" and len(families) == 2 and missing == ""
    assert fonts_for(["Ж"], first=families[1]) == ([families[1]], "")


def test_what_none_has_is_named() -> None:
    assert fonts_for(["中a", "\n", "国中"]).missing == "中国"


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_picture_with_boxes_says_so(name: str, tmp_path: Path) -> None:
    weights = np.full((1, 1, 2, 2), 0.5, np.float32)
    picture = HeatMap("source", weights, ("中", "a"), ("中", "a"))
    assert draw(picture, tmp_path / name, layer=None, head=None) == "中"
    assert (tmp_path / name).stat().st_size > 1000
