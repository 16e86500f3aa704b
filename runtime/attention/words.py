"""Which word of a text each of its tokens belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from ..texts.codecs.interface import TextStream


def words_of(tokens: Sequence[int], stream: TextStream) -> tuple[list[str], list[int | None]]:
    """Decode tokens one by one. Words have white space between them.

    Returns:
        the words of the text, and for each token the number of its word; None of tokens that add
        nothing to the text, such as special ones. A token that adds parts of several words belongs
        to the last of them, and what is incomplete to the word that it becomes a part of.
    """
    text = ""
    found: list[int | None] = []
    incomplete: list[int] = []
    for index, token in enumerate(tokens):
        piece = stream.step(token)
        begun, text = bool(text), text + piece
        found.append(None)
        if not piece:
            # Before any text these are special tokens, such as a language's.
            incomplete += [index] * begun
            continue
        if piece.strip():
            word = len(text.split()) - 1
            found[index] = word
            for earlier in incomplete if not piece[0].isspace() else ():
                found[earlier] = word
        incomplete = []
    return text.split(), found
