"""The tokenizer of encoder-only models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from tokenizers import Encoding

from dragoman.settings.head import Head

from ..decoding.results import RejectedError, TooManyTokensError
from ..format.texts import Prompts
from ..texts.codecs.interface import UnknownSymbolsError
from ..texts.codecs.library import LibraryCodec, LibraryTokenizer
from ..texts.tokenizer import TooLongError, check_length

Cut = Literal["longest_first", "only_first", "only_second"]
"""The text of a pair to truncate."""
WHOLE: dict[Cut, tuple[str, str]] = {
    "only_first": ("the hypothesis", "the text"),
    "only_second": ("the question", "the context"),
}
"""The text of a pair that is never truncated, and the other one."""


class Hypothesis(NamedTuple):
    """A pair for zero-shot classification, of which only the first text is truncated."""

    text: Any
    hypothesis: str


@dataclass(frozen=True)
class Tokenized:
    """The tokens of a text or a pair of texts."""

    ids: list[int]
    types: list[int]
    spans: list[tuple[int, int]]
    """Character offsets of each token in its text; empty if the source is token ids."""
    words: list[int | None]
    """Index of the word of each token; None for special tokens."""
    segments: list[int | None]
    """Index of the text of each token, 0 or 1; None for special tokens."""
    truncated: bool = False
    """Whether tokens were cut."""


class ReadingKeywords(TypedDict, total=False):
    """How the texts of a call are read."""

    truncate: bool
    """Whether to drop tokens beyond the model's positions, instead of rejecting the text."""
    split_special_tokens: bool
    """Whether special tokens in a text, such as `[SEP]`, are read as plain text; masks are always
    read as such."""
    prompt_name: str | None
    """Name of the model's prompt that is put before each text, as in sentence-transformers; None:
    its default, if it has one. Token ids get none."""


MOST_WINDOWS = 1000
"""The most windows of a context, each of which costs a pass."""


class InputTokenizer:
    """The tokenizer of an encoder-only model, as the task of its head requires.

    Raises:
        BundleError: the file is not a tokenizer, or fails on trial texts.
    """

    def __init__(
        self, path: Path, longest: int, head: Head, prompts: Prompts | None = None
    ) -> None:
        answers = head.task == "question-answering"
        mask = head.mask_token_id if head.task == "masked-language-model" else None
        self._longest, self._prompts = longest, prompts or Prompts({})
        self._cut: Cut = "only_second" if answers else "longest_first"
        self._codec = LibraryCodec(path)
        self._reader = LibraryTokenizer(path, kept=mask)

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncate: bool = False,
        split_special_tokens: bool = False,
        prompt_name: str | None = None,
        cut: Cut | None = None,
    ) -> Tokenized:
        """Tokenize a text or a pair of texts.

        Args:
            cut: the text of the pair to truncate; None: as the task requires

        Raises:
            TooManyTokensError: there are too many tokens, or the text that stays whole leaves no
                room.
            RejectedError: the text has unknown symbols, or the tokenizer fails.
            DragomanError: the model has no such prompt.
        """
        text, cut = self._prompts.before(prompt_name) + text, cut or self._cut
        with _rejections():
            for part in (text, pair or ""):
                part.encode()  # the library rejects lone surrogates
            try:
                for part in () if truncate else (text, pair or ""):
                    check_length(self._codec, part, self._longest, split=split_special_tokens)
            except TooLongError as error:
                raise TooManyTokensError(
                    f"text has {error}, expected at most {self._longest}"
                ) from error
            if truncate and cut in WHOLE:
                whole = text if cut == "only_second" else pair or ""
                self._check_room(whole, *WHOLE[cut], split=split_special_tokens)
            encoding = self._encode(text, pair, cut if truncate else None, split_special_tokens)
        if len(encoding.ids) > self._longest:
            raise TooManyTokensError(
                f"text has {len(encoding.ids)} tokens, expected at most {self._longest}"
            )
        return _tokenized(encoding, truncated=bool(encoding.overflowing))

    def windows(
        self,
        question: str,
        context: str,
        stride: int,
        *,
        split_special_tokens: bool = False,
        prompt_name: str | None = None,
    ) -> list[Tokenized]:
        """Tokenize a question with each window of a context that is too long for the model.

        Raises:
            TooManyTokensError: the question leaves room for at most `stride` tokens of the context,
                or there are too many windows.
        """
        split, question = split_special_tokens, self._prompts.before(prompt_name) + question
        with _rejections():
            return self._windows(question, context, stride, split)

    def _windows(self, question: str, context: str, stride: int, split: bool) -> list[Tokenized]:
        self._check_room(question, *WHOLE["only_second"], split=split, least=stride + 1)
        room = self._longest - self._around - self._count(question, split)
        longest = room + (MOST_WINDOWS - 1) * (room - stride)
        try:
            check_length(self._codec, context, longest, split=split)
        except TooLongError as error:
            raise TooManyTokensError(
                f"the context has {error}: expected at most {longest}, of {MOST_WINDOWS} windows "
                f"that share {stride}"
            ) from error
        whole = self._count(context, split)
        count = 1 + max(0, math.ceil((whole - room) / (room - stride)))
        if count > MOST_WINDOWS:
            raise TooManyTokensError(
                f"the context has {whole} tokens, {count} windows that share {stride}: expected at "
                f"most {MOST_WINDOWS}"
            )
        if count == 1:
            return [_tokenized(self._encode(question, context, None, split))]
        encoding = self._encode(question, context, "only_second", split, stride)
        return [_tokenized(each) for each in (encoding, *encoding.overflowing)]

    def piece(self, token: int) -> str | None:
        """Return the piece of a token."""
        return self._codec.piece(token)

    def text(self, token: int) -> str:
        """Decode a token as a word; special tokens are their pieces."""
        return self._codec.decode([token]).strip() or self.piece(token) or ""

    def after(self, token: int, following: int) -> str | None:
        """Return the text that `following` adds to the word of `token`; None for a new word."""
        before, both = self._codec.decode([token]), self._codec.decode([token, following])
        added = both.removeprefix(before)
        goes_on = before.strip() and both.startswith(before) and added.strip()
        return added if goes_on and not added[0].isspace() else None

    def _check_room(self, text: str, name: str, other: str, *, split: bool, least: int = 1) -> None:
        """Check that a text that stays whole leaves room for `least` tokens of the other one."""
        room = max(0, self._longest - self._around - least)
        expected = f"expected at most {room}: only {other} is cut"
        if least > 1:
            expected += f", into windows that share {least - 1} tokens"
        try:
            check_length(self._codec, text, room, split=split)
        except TooLongError as error:
            raise TooManyTokensError(f"{name} has {error}, {expected}") from error
        tokens = self._count(text, split)
        if tokens > room:
            raise TooManyTokensError(f"{name} has {tokens} tokens, {expected}")

    @property
    def _around(self) -> int:
        return self._reader.tokenizer.num_special_tokens_to_add(True)

    def _count(self, text: str, split: bool) -> int:
        found = self._reader.encode(text, special_tokens=False, split_special_tokens=split)
        return len(found.ids)

    def _encode(
        self, text: str, pair: str | None, cut: Cut | None, split: bool, stride: int = 0
    ) -> Encoding:
        return self._reader.encode(
            text,
            pair or None,
            special_tokens=True,
            split_special_tokens=split,
            truncation=None
            if cut is None
            else {"max_length": self._longest, "strategy": cut, "stride": stride},
        )


@contextmanager
def _rejections() -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise RejectedError(f"expected Unicode, found a lone surrogate: {error}") from error
    except UnknownSymbolsError as error:
        raise RejectedError(str(error)) from error


def _tokenized(encoding: Encoding, *, truncated: bool = False) -> Tokenized:
    return Tokenized(
        encoding.ids,
        encoding.type_ids,
        encoding.offsets,
        encoding.word_ids,
        encoding.sequence_ids,
        truncated=truncated,
    )
