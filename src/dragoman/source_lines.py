"""Lines of text -> sources of a model, and outputs -> lines."""

from __future__ import annotations

from collections.abc import Sequence

Line = str | UnicodeDecodeError
"""A line of input, or why it cannot be read."""

IDS_EXPECTED = "expected token ids separated by spaces: this bundle has no tokenizers"


def decoded_line(line: bytes) -> Line:
    """A line without its end."""
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return error


def unreadable(error: UnicodeDecodeError) -> str:
    """Why a line cannot be read."""
    return f"expected UTF-8 text: {error.reason} at byte {error.start}"


def token_ids(text: str) -> list[int] | None:
    """The token ids that a line of a bundle without tokenizers states; None: it is not one."""
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        return None


def one_line(text: str | None, tokens: Sequence[int]) -> str:
    """A text of any number of lines on one; of a bundle without tokenizers, token ids."""
    return " ".join(map(str, tokens) if text is None else text.splitlines())
