"""Text from files, such as names of weights, on its way to a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with escapes in place of characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
