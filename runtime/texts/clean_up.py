"""Removes spaces before punctuation, as tokenizers with `clean_up_tokenization_spaces` do."""

from __future__ import annotations

import re
from itertools import chain, product

from .codecs.interface import TextStream

_REPLACEMENTS = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't")),
    *((" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
# Some matches arise only where an apostrophe has lost its spaces.
_MATCHES = {old for old, _ in _REPLACEMENTS}
_MATCHES |= {old.replace("'", " ' ") for old in _MATCHES if old != " ' "}
_BEGINNINGS = {match[:n] for match in _MATCHES for n in range(1, len(match))}
_CLEANED = re.compile(r"([.?!,]|n't|'(?:m|s|ve|re)?)")
MOST_MARKS = 6
"""Marks in a forbidden text, each of which can have lost a space."""
_LONGEST = max(map(len, _BEGINNINGS))


def clean_up(text: str) -> str:
    """Return a decoded text without spaces before punctuation and English contractions."""
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    return text


def uncleaned(text: str) -> set[str]:
    """Return the texts that `clean_up` may have made a text of.

    Raises:
        ValueError: the text has too many places where a space can have been.
    """
    parts = _CLEANED.split(text)
    marks = parts[1::2]
    if len(marks) > MOST_MARKS:
        raise ValueError(f"expected at most {MOST_MARKS} marks, found {len(marks)}")
    choices = ((m, f" {m}", m.replace("'", " ' ")) for m in marks)
    return {
        "".join(chain.from_iterable(zip(parts[::2], (*chosen, ""), strict=True)))
        for chosen in product(*choices)
    }


class CleaningStream:
    """Applies `clean_up` to a stream of tokens; a possible beginning of a match is held back."""

    def __init__(self, stream: TextStream) -> None:
        self._stream, self._held = stream, ""

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        text = self._held + self._stream.step(token)
        kept = max(
            n for n in range(min(_LONGEST, len(text)) + 1) if not n or text[-n:] in _BEGINNINGS
        )
        end = len(text) - kept
        while text[end : end + 1] == " " and text[:end].endswith((" '", " ")):
            end -= 1 if text[end - 1] == " " else 2
        whole, self._held = text[:end], text[end:]
        return clean_up(whole)

    def rest(self) -> str:
        """Return the text that is held back."""
        held, self._held = self._held + self._stream.rest(), ""
        return clean_up(held)
