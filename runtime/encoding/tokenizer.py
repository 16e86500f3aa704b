"""The tokenizer of encoder-only models: token ids of texts and pairs, with character offsets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Encoding, Tokenizer

from dragoman.settings.head import Head

from ..decoding.results import RejectedError
from ..texts.codecs.interface import UnknownSymbolsError
from ..texts.codecs.library import LibraryCodec, load_tokenizer
from ..texts.codecs.tokenizer_file import failures_of, read_tokenizer
from ..texts.tokenizer import TooLongError, check_length

Cut = Literal["longest_first", "only_second"]


@dataclass(frozen=True)
class Tokenized:
    """The tokens of a text or a pair of texts.

    Attributes:
        ids: token ids, including special tokens
        types: token type id of each token
        spans: character offsets of each token in its text; empty if the source is token ids
        words: index of the word of each token; None for special tokens
        segments: index of the text of each token, 0 or 1; None for special tokens
        truncated: whether tokens were cut
    """

    ids: list[int]
    types: list[int]
    spans: list[tuple[int, int]]
    words: list[int | None]
    segments: list[int | None]
    truncated: bool = False


class TooManyTokensError(RejectedError):
    """A text has more tokens than the model has positions."""


class InputTokenizer:
    """The tokenizer of an encoder-only model.

    Args:
        path: a file of the `tokenizers` library
        longest: maximum number of tokens that the model reads
        cut: the text of a pair to truncate
        reads_special_tokens: whether special tokens in a text, such as a mask, are parsed as
            special tokens instead of plain text

    Raises:
        BundleError: the file is not a tokenizer, or fails on trial texts.
    """

    def __init__(self, path: Path, longest: int, *, cut: Cut, reads_special_tokens: bool) -> None:
        self._path, self._longest, self._cut = path, longest, cut
        self._codec = LibraryCodec(path)
        load = read_tokenizer if reads_special_tokens else load_tokenizer
        self._whole, self._cutting = load(path), load(path)
        self._cutting.enable_truncation(longest, strategy=cut)

    @classmethod
    def of(cls, path: Path, longest: int, head: Head) -> InputTokenizer:
        """Create the tokenizer that the task of a head requires."""
        answers = head.task == "question-answering"
        return cls(
            path,
            longest,
            cut="only_second" if answers else "longest_first",
            reads_special_tokens=head.task == "masked-language-model",
        )

    def encode(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Tokenized:
        """Tokenize a text or a pair of texts.

        Args:
            pair: the second text; empty: no second text
            truncate: whether to truncate to the model's positions

        Raises:
            TooManyTokensError: there are more tokens than the model reads, or the question leaves
                no room for the truncated context.
            RejectedError: the text has unknown symbols, or the tokenizer fails.
        """
        try:
            for part in (text, pair or ""):
                part.encode()  # the library rejects lone surrogates
                if not truncate:
                    check_length(self._codec, part, self._longest)
            if truncate and self._cut == "only_second":
                self._check_first(text)
            encoding = self._encode(self._cutting if truncate else self._whole, text, pair)
        except UnicodeEncodeError as error:
            raise RejectedError(f"expected Unicode, found a lone surrogate: {error}") from error
        except UnknownSymbolsError as error:
            raise RejectedError(str(error)) from error
        except TooLongError as error:
            raise TooManyTokensError(
                f"text has {error}, expected at most {self._longest}"
            ) from error
        if len(encoding.ids) > self._longest:
            raise TooManyTokensError(
                f"text has {len(encoding.ids)} tokens, expected at most {self._longest}"
            )
        return Tokenized(
            list(encoding.ids),
            list(encoding.type_ids),
            list(encoding.offsets),
            list(encoding.word_ids),
            list(encoding.sequence_ids),
            truncated=bool(encoding.overflowing),
        )

    def piece(self, token: int) -> str | None:
        """Return a token as the vocabulary spells it."""
        return self._whole.id_to_token(token)

    def text(self, token: int) -> str:
        """Decode a token as a word; special tokens as the vocabulary spells them."""
        with failures_of(self._path):
            return self._whole.decode([token]).strip() or self.piece(token) or ""

    def after(self, token: int, following: int) -> str | None:
        """Return the text that `following` adds to the word of `token`; None for a new word."""
        with failures_of(self._path):
            before, both = self._whole.decode([token]), self._whole.decode([token, following])
        added = both.removeprefix(before)
        goes_on = before.strip() and both.startswith(before) and added.strip()
        return added if goes_on and not added[0].isspace() else None

    def _check_first(self, text: str) -> None:
        """Check that the question leaves room for a token of the context.

        Only the context is truncated, and without room for it the library fails.
        """
        room = max(0, self._longest - self._whole.num_special_tokens_to_add(True) - 1)
        expected = f"expected at most {room}: only the context is cut"
        try:
            check_length(self._codec, text, room)
        except TooLongError as error:
            raise TooManyTokensError(f"the question has {error}, {expected}") from error
        tokens = len(self._encode(self._whole, text, None, special_tokens=False).ids)
        if tokens > room:
            raise TooManyTokensError(f"the question has {tokens} tokens, {expected}")

    def _encode(
        self, tokenizer: Tokenizer, text: str, pair: str | None, *, special_tokens: bool = True
    ) -> Encoding:
        with failures_of(self._path):
            try:
                return tokenizer.encode(text, pair or None, add_special_tokens=special_tokens)
            except Exception as error:  # the library raises no narrower type
                raise UnknownSymbolsError([str(error)]) from error
