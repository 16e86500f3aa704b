"""Tokenizers of the `tokenizers` library."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from threading import Lock
from typing import Any

from tokenizers import Encoding, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from .interface import (
    EncodedSource,
    EncodedTarget,
    UnknownSymbolsError,
    Words,
    tokens_as_words,
    words_of_spans,
)
from .tokenizer_file import failures_of, read_tokenizer


class LibraryTokenizer:
    """A tokenizer that reads special tokens in a text as such or, on request, as plain text.

    It is thread-safe.

    Args:
        kept: token that is never read as plain text, such as a mask

    Raises:
        BundleError: the file is not a tokenizer, or fails on trial texts.
    """

    def __init__(self, path: Path, *, kept: int | None = None) -> None:
        self._path = path
        self.tokenizer = read_tokenizer(path, text_token=kept)
        """Decodes, and describes the vocabulary; only `encode` may encode with it."""
        self._lock, self._splits = Lock(), False
        self._pre_tokenizer = self.tokenizer.pre_tokenizer

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special_tokens: bool,
        split_special_tokens: bool = False,
        truncation: Mapping[str, Any] | None = None,
    ) -> Encoding:
        """Encode a text or a pair of texts.

        Args:
            truncation: arguments of the library's `enable_truncation`; None: no truncation
        """
        tokenizer = self.tokenizer
        with self._lock, failures_of(self._path):
            if split_special_tokens != self._splits:
                self.set_splitting(split_special_tokens)
            if truncation is not None:
                tokenizer.enable_truncation(**truncation)
            try:
                return tokenizer.encode(text, pair=pair, add_special_tokens=special_tokens)
            except Exception as error:  # the library raises no narrower type
                raise UnknownSymbolsError(self._unknown_symbols(text) or [str(error)]) from error
            finally:
                if truncation is not None:
                    tokenizer.no_truncation()

    def set_splitting(self, splits: bool) -> None:
        """Set whether special tokens are read as plain text."""
        self.tokenizer.encode_special_tokens = splits
        if self._splitter is not None:
            self.tokenizer.pre_tokenizer = self._splitter if splits else self._pre_tokenizer
        self._splits = splits

    @cached_property
    def _splitter(self) -> pre_tokenizers.PreTokenizer | None:
        """A pre-tokenizer that splits after the first character of a special token.

        Otherwise T5, where `</s>` is a piece, would encode a typed `</s>` as the end token.
        """
        reachable = sorted(
            token.content
            for token_id, token in self.tokenizer.get_added_tokens_decoder().items()
            if token.special and _encodes_to(self.tokenizer, token.content, token_id)
        )
        if not reachable:
            return None
        split_points = "|".join(
            f"{re.escape(first)}(?=(?:{'|'.join(re.escape(content[1:]) for content in contents)}))"
            for first, contents in groupby(reachable, key=lambda content: content[0])
        )
        split = pre_tokenizers.Split(Regex(split_points), "isolated")
        existing = self._pre_tokenizer
        return pre_tokenizers.Sequence([existing, split] if existing else [split])

    def _unknown_symbols(self, text: str) -> list[str]:
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        pieces = splitter.pre_tokenize_str(normalized) if splitter else [(normalized, (0, 0))]
        unknown = (piece for piece, _ in pieces if self.tokenizer.token_to_id(piece) is None)
        return list(dict.fromkeys(unknown))


class LibraryCodec:
    """A tokenizer file of the `tokenizers` library."""

    def __init__(self, path: Path, *, special_tokens: bool = True) -> None:
        self._path = path
        self._reader = LibraryTokenizer(path)
        self._tokenizer = self._reader.tokenizer
        self._special_tokens = special_tokens

    def encode_source(
        self, text: str, most: int | None = None, *, split_special_tokens: bool = False
    ) -> EncodedSource:
        """Return the token ids of a text."""
        encoding = self._reader.encode(
            text,
            special_tokens=self._special_tokens,
            split_special_tokens=split_special_tokens,
            truncation=None if most is None else {"max_length": most},
        )
        ids = [] if all(encoding.special_tokens_mask) else list(encoding.ids)
        unknown = self.unknown
        if unknown not in ids or isinstance(
            self._tokenizer.model, models.WordLevel | models.WordPiece
        ):
            return EncodedSource(ids)
        spans = zip(ids, encoding.offsets, strict=True)
        places = {n for token, span in spans if token == unknown for n in range(*span)}
        return EncodedSource(ids, "".join(text[n] for n in sorted(places)))

    @property
    def template_tokens(self) -> Sequence[int]:
        """The special tokens around a text."""
        empty = self._encode("", self._special_tokens, False)
        pairs = zip(empty.ids, empty.special_tokens_mask, strict=True)
        return [token for token, special in pairs if special]

    def words(
        self, text: str, *, split_special_tokens: bool = False, each_token: bool = False
    ) -> Words:
        """Return the words of a text and of each token."""
        encoding = self._encode(text, self._special_tokens, split_special_tokens)
        offsets = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        spans = [None if special else span for span, special in offsets]
        # Without a decoder, a text is its tokens joined with spaces.
        whole = self._tokenizer.decoder is not None and not each_token
        return (words_of_spans if whole else tokens_as_words)(text, spans)

    def encode_target(self, text: str, *, split_special_tokens: bool = False) -> EncodedTarget:
        """Return the token ids of a target text."""
        encoding = self._encode(text, self._special_tokens, split_special_tokens)
        ids, special = encoding.ids, encoding.special_tokens_mask
        text_ids = [token for token, is_special in zip(ids, special, strict=True) if not is_special]
        leading = len(list(takewhile(bool, special))) if text_ids else 0
        return EncodedTarget(ids[:leading], text_ids)

    def count(self, text: str, end: int, *, split_special_tokens: bool = False) -> int:
        """Count the tokens that end by `end`."""
        offsets = self._encode(text, False, split_special_tokens).offsets
        return sum(last <= end for _, last in offsets)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode tokens to a text."""
        with failures_of(self._path):
            return str(
                self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)
            )

    def piece(self, token: int) -> str | None:
        """Return the piece of a token."""
        return self._tokenizer.id_to_token(token)

    def token(self, piece: str) -> int | None:
        """Return the id of a token."""
        found: int | None = self._tokenizer.token_to_id(piece)
        return found

    @cached_property
    def unknown(self) -> int | None:
        """The id of the unknown token."""
        model: Any = self._tokenizer.model
        if isinstance(model, models.Unigram):
            index: int | None = json.loads(self._tokenizer.to_str())["model"].get("unk_id")
            return index
        token = getattr(model, "unk_token", None)
        return None if token is None else self._tokenizer.token_to_id(token)

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """The special tokens by id."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.special}

    def stream(self, *, skip_special_tokens: bool = True) -> LibraryStream:
        """Return a decoder of a stream of tokens."""
        # Special tokens that texts omit do not end a run of bytes.
        omitted = self.special_tokens if skip_special_tokens else ()
        return LibraryStream(
            self._tokenizer,
            self._path,
            skip_special_tokens,
            self._bytes,
            self._bytes.union(omitted),
        )

    @cached_property
    def _bytes(self) -> frozenset[int]:
        """The tokens that are bytes of characters, if the decoder joins them."""
        decoder = self._tokenizer.decoder
        if decoder is None or b'"ByteFallback"' not in decoder.__getstate__():
            return frozenset()
        tokens = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token for token in tokens if token is not None)

    def _encode(self, text: str, special_tokens: bool, split_special_tokens: bool) -> Encoding:
        return self._reader.encode(
            text, special_tokens=special_tokens, split_special_tokens=split_special_tokens
        )


class LibraryStream:
    """Decodes tokens with the library's `DecodeStream`.

    A run of bytes is held back, since one that makes no character makes all of it U+FFFD.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        path: Path,
        skip_special_tokens: bool,
        bytes_: Collection[int] = (),
        within: Collection[int] = (),
    ) -> None:
        self._tokenizer, self._path = tokenizer, path
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._skips = skip_special_tokens
        self._bytes, self._within = bytes_, within
        self._run: list[int] = []
        self._incomplete: list[int] = []

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        if token in (self._within if self._run else self._bytes):
            self._run.append(token)
            return ""
        return self._decoded([*self._run, token])

    def rest(self) -> str:
        """Return the text that is held back."""
        text = self._decoded(self._run)
        with failures_of(self._path):
            text += self._tokenizer.decode(self._incomplete, skip_special_tokens=self._skips)
        self._incomplete = []
        return text

    def _decoded(self, tokens: list[int]) -> str:
        self._run = []
        if not tokens:
            return ""
        with failures_of(self._path):
            text = self._stream.step(self._tokenizer, tokens) or ""
        self._incomplete = [] if text else [*self._incomplete, *tokens]
        return text


def _encodes_to(tokenizer: Tokenizer, content: str, token_id: int) -> bool:
    if len(content) < 2:
        return False
    try:
        return any(token.id == token_id for token in tokenizer.model.tokenize(content))
    except Exception:  # no token for the content, nor for unknown symbols
        return False


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer for which special tokens in a text are plain text."""
    reader = LibraryTokenizer(path)
    reader.set_splitting(True)
    return reader.tokenizer
