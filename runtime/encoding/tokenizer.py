"""Texts and pairs of texts -> token ids, with where in the text each token stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Encoding, Tokenizer

from ..decoding.rejection import RejectedError
from ..format.head import Head
from ..texts.codecs.failures import failures_of
from ..texts.codecs.interface import UnknownSymbolsError
from ..texts.codecs.library import LibraryCodec, load_tokenizer
from ..texts.codecs.tokenizer_file import read_tokenizer
from ..texts.long_texts import TooLongError, check_length

Cut = Literal["longest_first", "only_second"]


@dataclass(frozen=True)
class Tokenized:
    """A text, or a pair, as tokens.

    Attributes:
        ids: token ids, special tokens included
        types: the segment that each belongs to
        spans: which characters of its text each is; empty if token ids were given
        words: the word that each belongs to; None of special tokens
        segments: the text that each belongs to, 0 or 1; None of special tokens
        truncated: whether tokens were left out
    """

    ids: list[int]
    types: list[int]
    spans: list[tuple[int, int]]
    words: list[int | None]
    segments: list[int | None]
    truncated: bool = False


class TooManyTokensError(RejectedError):
    """A text with more tokens than the model reads."""


class InputTokenizer:
    """The tokenizer of an encoder alone.

    Args:
        path: a file of the `tokenizers` library
        longest: the most tokens that the model reads
        cut: which text of a pair is cut
        reads_special_tokens: whether special tokens that a text contains are read as such, as a
            mask must be; otherwise they are text

    Raises:
        BundleError: the file is not a tokenizer, or fails when it is tried out.
    """

    def __init__(self, path: Path, longest: int, *, cut: Cut, reads_special_tokens: bool) -> None:
        self._path, self._longest, self._cut = path, longest, cut
        self._codec = LibraryCodec(path)
        load = read_tokenizer if reads_special_tokens else load_tokenizer
        self._whole, self._cutting = load(path), load(path)
        self._cutting.enable_truncation(longest, strategy=cut)

    @classmethod
    def of(cls, path: Path, longest: int, head: Head) -> InputTokenizer:
        """As the task of a head needs it."""
        answers = head.task == "question-answering"
        return cls(
            path,
            longest,
            cut="only_second" if answers else "longest_first",
            reads_special_tokens=head.task == "masked-language-model",
        )

    def encode(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Tokenized:
        """
        Args:
            pair: the second text; an empty one is none
            truncate: whether to leave out what the model has no positions for

        Raises:
            TooManyTokensError: there are more tokens than the model reads; or, to be cut, more in
                the first text of a pair than can stay.
            RejectedError: there are symbols that the tokenizer does not know; or the tokenizer
                fails.
        """
        try:
            for part in (text, pair or ""):
                part.encode()  # the library refuses lone surrogates
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
        """A token as the vocabulary writes it."""
        return self._whole.id_to_token(token)

    def text(self, token: int) -> str:
        """A token on its own, as a word; of special tokens, what the vocabulary calls them."""
        with failures_of(self._path):
            return self._whole.decode([token]).strip() or self.piece(token) or ""

    def after(self, token: int, following: int) -> str | None:
        """What a token adds to the word that the one before it is of; None: it begins another."""
        with failures_of(self._path):
            before, both = self._whole.decode([token]), self._whole.decode([token, following])
        added = both.removeprefix(before)
        goes_on = before.strip() and both.startswith(before) and added.strip()
        return added if goes_on and not added[0].isspace() else None

    def _check_first(self, text: str) -> None:
        """Check that the first text of a pair leaves room for a token of the second, which alone is
        cut: otherwise the library fails.
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
