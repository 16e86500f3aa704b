"""Converts lines of text to sources of a model, and outputs and names to lines."""

from collections import Counter
from collections.abc import Iterable, Sequence

from dragoman.errors import DragomanError, shown

Line = str | UnicodeDecodeError
"""A line of input, or why it cannot be read."""

IDS_EXPECTED = "expected token ids separated by spaces: this bundle has no tokenizers"


def decoded_line(line: bytes) -> Line:
    """Decode a line without its end."""
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        return error


def unreadable(error: UnicodeDecodeError) -> str:
    """Describe why a line cannot be read."""
    return f"expected UTF-8 text: {error.reason} at byte {error.start}"


def undecodable(byte: int, offset: int, line: int) -> str:
    """Describe a byte that is not UTF-8, by its offset in a file, from 0, and line, from 1."""
    return f"expected UTF-8 text, found byte {byte:#04x} at offset {offset} (line {line})"


class UnknownCharacters:
    """Counts the characters of texts that a vocabulary lacks.

    Attributes:
        characters: number of characters of all texts
        found: how often each unknown character occurs, the first one first
    """

    def __init__(self) -> None:
        self.characters = 0
        self.found: Counter[str] = Counter()

    def add(self, text: str, unknown: Iterable[str]) -> None:
        """Count a text and its unknown characters."""
        self.characters += len(text)
        self.found.update(unknown)

    def summary(self) -> str:
        """Return how many are unknown, their share and the first ones; empty if none is."""
        count = self.found.total()
        if not count:
            return ""
        first = ", ".join(shown(character) for character in [*self.found][:5])
        more = ", ..." if len(self.found) > 5 else ""
        return (
            f"{count:,} of {self.characters:,} characters ({100 * count / self.characters:.3g}%) "
            f"{'is' if count == 1 else 'are'} not in the vocabulary: {first}{more}"
        )


def token_ids(text: str) -> list[int] | None:
    """Parse the token ids of a line, for a bundle without tokenizers; None if they are not ids."""
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        return None


def source_of(line: Line, *, takes_text: bool) -> str | list[int] | DragomanError:
    """Return the source that a line states, or the error of a line that states none.

    Args:
        takes_text: whether the model takes texts; if not, a line is token ids
    """
    if isinstance(line, UnicodeDecodeError):
        return DragomanError(unreadable(line))
    if takes_text:
        return line
    ids = token_ids(line)
    return DragomanError(IDS_EXPECTED) if ids is None else ids


def one_line(text: str | None, tokens: Sequence[int]) -> str:
    """Join the lines of a text to one line; without a text, write token ids."""
    return " ".join(map(str, tokens) if text is None else text.splitlines())


def printable(text: str) -> str:
    """Write a text on one line, with escapes for characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
