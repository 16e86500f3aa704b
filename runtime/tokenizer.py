"""Texts to token ids and back, with the files of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from .manifest import BundleError


class UnknownSymbolsError(ValueError):
    """A text with symbols that the tokenizer has no token for."""

    def __init__(self, symbols: Sequence[str]) -> None:
        shown = ", ".join(repr(s) for s in symbols[:5]) + (", ..." if len(symbols) > 5 else "")
        super().__init__(f"unknown to this model: {shown}")


class TextCodec:
    """A tokenizer for each side of a model."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = _load(source)
        self._target = _load(target)

    def encode(self, text: str) -> list[int]:
        """Source token ids, with the special tokens that the model was trained with.

        Empty if nothing but special tokens is left of the text.

        Raises:
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                token for unknown ones.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:  # the library takes no lone surrogates
            raise UnknownSymbolsError([text[error.start : error.end]]) from error
        try:
            encoding = self._source.encode(text)
        except Exception as error:  # the library raises no narrower type
            raise UnknownSymbolsError(self._unknown_symbols(text) or [str(error)]) from error
        return [] if all(encoding.special_tokens_mask) else list(encoding.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._target.decode(list(tokens), skip_special_tokens=True))

    def stream(self) -> TextStream:
        return TextStream(self._target)

    def _unknown_symbols(self, text: str) -> list[str]:
        normalizer, splitter = self._source.normalizer, self._source.pre_tokenizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        pieces = splitter.pre_tokenize_str(normalized) if splitter else [(normalized, (0, 0))]
        unknown = (piece for piece, _ in pieces if self._source.token_to_id(piece) is None)
        return list(dict.fromkeys(unknown))


class TextStream:
    """Decodes tokens one by one: the pieces joined are the text of them all, less what ends in an
    incomplete symbol."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        """The text that this token adds; empty while a symbol is incomplete."""
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
    return tokenizer
