"""Texts that have far more tokens than a model has positions, told from their beginnings.

Encoding takes time that grows with the length, with some tokenizers faster than it. How long a text
may be cannot be said in characters: a million spaces, or a million unknown symbols, may be one
token. So a beginning is encoded, and a longer one if its tokens are not yet too many.
"""

from __future__ import annotations

from .codecs import Codec

CHARACTERS_PER_TOKEN = 8
"""Texts in any language have fewer, so that the first beginning is usually enough."""
FURTHER_CHARACTERS = 2048
"""A token depends on less than half as many characters after it: words have at most
`codecs.tokenizer_file.LONGEST_WORD` before they become one unknown token."""


class TooLongError(ValueError):
    """A text with too many tokens.

    Attributes:
        tokens: it has at least as many
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


def check_length(codec: Codec, text: str, most: int) -> None:
    """Check that a text may have at most so many tokens, encoding no more of it than that takes.

    Only the tokens of the first half of a beginning are counted, which what follows cannot change.
    So no text is refused that has few enough tokens; one that passes may still have a few too many.

    Raises:
        TooLongError: it has more.
        UnknownSymbolsError, TokenizerError: as for `Codec.encode`.
    """
    counted = CHARACTERS_PER_TOKEN * most + FURTHER_CHARACTERS
    while 2 * counted < len(text):
        beginning = _whole_words(text[: 2 * counted], least=counted + counted // 2)
        tokens = codec.count(beginning, counted)
        if tokens > most:
            raise TooLongError(tokens)
        counted *= 2


def _whole_words(text: str, *, least: int) -> str:
    """A text without its last word, which may be half a word, if so many characters are left."""
    *rest, _ = text.rsplit(None, 1) or [""]
    return rest[0] if rest and len(rest[0]) >= least else text
