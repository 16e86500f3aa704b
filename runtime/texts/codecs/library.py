"""Tokenizers of the `tokenizers` library."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from .interface import EncodedTarget, UnknownSymbolsError, Words, tokens_as_words, words_of_spans
from .tokenizer_file import failures_of, read_tokenizer


class LibraryCodec:
    """A tokenizer file of the `tokenizers` library.

    Args:
        special_tokens: whether `encode` adds the special tokens that the file defines around a text
    """

    def __init__(self, path: Path, *, special_tokens: bool = True) -> None:
        self._path = path
        self._tokenizer = load_tokenizer(path)
        self._special_tokens = special_tokens

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        encoding = self._encode(text, self._special_tokens)
        return [] if all(encoding.special_tokens_mask) else list(encoding.ids)

    def words(self, text: str) -> Words:
        """Return the words of a text and the word of each token."""
        encoding = self._encode(text, self._special_tokens)
        offsets = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        spans = [None if special else span for span, special in offsets]
        # Without a decoder, a text is its tokens joined with spaces.
        return (words_of_spans if self._tokenizer.decoder else tokens_as_words)(text, spans)

    def encode_target(self, text: str) -> EncodedTarget:
        """Return the token ids of a target text."""
        encoding = self._encode(text, self._special_tokens)
        ids, special = encoding.ids, encoding.special_tokens_mask
        text_ids = [token for token, is_special in zip(ids, special, strict=True) if not is_special]
        leading = len(list(takewhile(bool, special))) if text_ids else 0
        return EncodedTarget(ids[:leading], text_ids)

    def count(self, text: str, end: int) -> int:
        """Count the tokens that end within the first `end` characters."""
        return sum(last <= end for _, last in self._encode(text, False).offsets)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to a text without special tokens."""
        with failures_of(self._path):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def piece(self, token: int) -> str | None:
        """Return a token as the vocabulary spells it."""
        return self._tokenizer.id_to_token(token)

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token; None if there is none."""
        model: Any = self._tokenizer.model
        if isinstance(model, models.Unigram):
            index: int | None = json.loads(self._tokenizer.to_str())["model"].get("unk_id")
            return index
        token = getattr(model, "unk_token", None)
        return None if token is None else self._tokenizer.token_to_id(token)

    def stream(self) -> LibraryStream:
        """Return a decoder of a stream of tokens."""
        return LibraryStream(self._tokenizer, self._path)

    def _encode(self, text: str, special_tokens: bool) -> Encoding:
        with failures_of(self._path):
            try:
                return self._tokenizer.encode(text, add_special_tokens=special_tokens)
            except Exception as error:  # the library raises no narrower type
                raise UnknownSymbolsError(self._unknown_symbols(text) or [str(error)]) from error

    def _unknown_symbols(self, text: str) -> list[str]:
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        pieces = splitter.pre_tokenize_str(normalized) if splitter else [(normalized, (0, 0))]
        unknown = (piece for piece, _ in pieces if self._tokenizer.token_to_id(piece) is None)
        return list(dict.fromkeys(unknown))


class LibraryStream:
    """Decodes a stream of tokens with the library's `DecodeStream`."""

    def __init__(self, tokenizer: Tokenizer, path: Path) -> None:
        self._tokenizer, self._path = tokenizer, path
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        with failures_of(self._path):
            return self._stream.step(self._tokenizer, token) or ""


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that treats special tokens in a text as plain text.

    Raises:
        BundleError: the file is not a tokenizer, or fails on trial texts.
    """
    tokenizer = read_tokenizer(path)
    # The file format cannot store this setting.
    tokenizer.encode_special_tokens = True
    _keep_special_tokens_from_texts(tokenizer)
    return tokenizer


def _keep_special_tokens_from_texts(tokenizer: Tokenizer) -> None:
    """Split texts after the first character of special tokens that are also pieces of the model.

    Otherwise T5, whose vocabulary has `</s>` as a piece with a high score, would encode a typed
    `</s>` as the end token.
    """
    reachable = sorted(
        token.content
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and _encodes_to(tokenizer, token.content, token_id)
    )
    if not reachable:
        return
    split_points = "|".join(
        f"{re.escape(first)}(?=(?:{'|'.join(re.escape(content[1:]) for content in contents)}))"
        for first, contents in groupby(reachable, key=lambda content: content[0])
    )
    split = pre_tokenizers.Split(Regex(split_points), "isolated")
    existing = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([existing, split] if existing else [split])


def _encodes_to(tokenizer: Tokenizer, content: str, token_id: int) -> bool:
    if len(content) < 2:
        return False
    try:
        return any(token.id == token_id for token in tokenizer.model.tokenize(content))
    except Exception:  # no token for the content, nor for unknown symbols
        return False
