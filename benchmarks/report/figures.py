"""Numbers for people."""

from __future__ import annotations

import re

EXPONENT = re.compile(r"e([+-])0*(\d)")


def figure(value: float, digits: int = 2) -> str:
    """So many significant digits: 0.031, 5.9e-5."""
    return EXPONENT.sub(r"e\1\2", f"{value:.{digits}g}").replace("e+", "e")


def counted(number: int, what: str) -> str:
    """1 output, 2 outputs."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
