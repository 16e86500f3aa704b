"""Files of the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.decoders import DecodeStream

from ...format.manifest import BundleError
from .interface import UnknownSymbolsError


class LibraryCodec:
    """A file of the `tokenizers` library, as it is.

    Args:
        special_tokens: whether `encode` puts the special tokens around a text that the file says
    """

    def __init__(self, path: Path, *, special_tokens: bool = True) -> None:
        self._tokenizer = _load(path)
        self._special_tokens = special_tokens

    def encode(self, text: str) -> list[int]:
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=self._special_tokens)
        except Exception as error:  # the library raises no narrower type
            raise UnknownSymbolsError(self._unknown_symbols(text) or [str(error)]) from error
        return [] if all(encoding.special_tokens_mask) else list(encoding.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def stream(self) -> LibraryStream:
        return LibraryStream(self._tokenizer)

    def _unknown_symbols(self, text: str) -> list[str]:
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        pieces = splitter.pre_tokenize_str(normalized) if splitter else [(normalized, (0, 0))]
        unknown = (piece for piece, _ in pieces if self._tokenizer.token_to_id(piece) is None)
        return list(dict.fromkeys(unknown))


class LibraryStream:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        return self._stream.step(self._tokenizer, token) or ""


def _load(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise BundleError(str(path), [f"not a tokenizer file: {error}"]) from error
    # The file may ask for these, and does not hold the first: what a user types is text, and a
    # text too long is rejected, never cut.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _keep_special_tokens_from_texts(tokenizer)
    return tokenizer


def _keep_special_tokens_from_texts(tokenizer: Tokenizer) -> None:
    """Special tokens may be pieces of the model's vocabulary too, and of high score: T5 would make
    the end token of a typed `</s>`. Such a piece is cut after its first character."""
    reachable = sorted(
        token.content
        for identity, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and _makes(tokenizer, token.content, identity)
    )
    if not reachable:
        return
    cut = "|".join(
        f"{re.escape(first)}(?=(?:{'|'.join(re.escape(content[1:]) for content in contents)}))"
        for first, contents in groupby(reachable, key=lambda content: content[0])
    )
    cutting = pre_tokenizers.Split(Regex(cut), "isolated")
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([before, cutting] if before else [cutting])


def _makes(tokenizer: Tokenizer, content: str, identity: int) -> bool:
    if len(content) < 2:
        return False
    try:
        return any(token.id == identity for token in tokenizer.model.tokenize(content))
    except Exception:  # no token for it, and none for unknown symbols
        return False
