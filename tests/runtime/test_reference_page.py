"""The page that shows the runtime's classes and functions shows all that are public."""

from __future__ import annotations

import re
from pathlib import Path

from dragoman import runtime

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "runtime.md"


def test_every_public_name_is_shown_once() -> None:
    shown = re.findall(r"^::: dragoman\.runtime\.(\w+)$", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(shown) == sorted(runtime.__all__)
