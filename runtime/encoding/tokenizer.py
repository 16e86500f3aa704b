"""The tokenizer of encoder-only models: token ids of texts and pairs, with character offsets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from tokenizers import Encoding

from dragoman.settings.head import Head

from ..decoding.results import RejectedError, TooManyTokensError
from ..format.texts import Prompts
from ..texts.codecs.interface import UnknownSymbolsError
from ..texts.codecs.library import LibraryCodec, LibraryTokenizer
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


class ReadingKeywords(TypedDict, total=False):
    """How the texts of a call are read.

    Attributes:
        truncate: whether to drop tokens beyond the model's positions, instead of rejecting the text
        split_special_tokens: whether special tokens in a text, such as `[SEP]`, are read as plain
            text; masks are always read as such
        prompt_name: name of the model's prompt that is put before each text, as in
            sentence-transformers; None: its default, if it has one. Token ids get none.
    """

    truncate: bool
    split_special_tokens: bool
    prompt_name: str | None


class InputTokenizer:
    """The tokenizer of an encoder-only model.

    Args:
        path: a file of the `tokenizers` library
        longest: maximum number of tokens that the model reads
        cut: the text of a pair to truncate
        mask: token that is always read as such; None: there is none
        prompts: texts that are put before a text

    Raises:
        BundleError: the file is not a tokenizer, or fails on trial texts.
    """

    def __init__(
        self,
        path: Path,
        longest: int,
        *,
        cut: Cut,
        mask: int | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        self._longest, self._cut = longest, cut
        self._prompts = prompts or Prompts({})
        self._codec = LibraryCodec(path)
        self._reader = LibraryTokenizer(path, kept=mask)

    @classmethod
    def of(
        cls, path: Path, longest: int, head: Head, prompts: Prompts | None = None
    ) -> InputTokenizer:
        """Create the tokenizer that the task of a head requires."""
        answers = head.task == "question-answering"
        return cls(
            path,
            longest,
            cut="only_second" if answers else "longest_first",
            mask=head.mask_token_id if head.task == "masked-language-model" else None,
            prompts=prompts,
        )

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncate: bool = False,
        split_special_tokens: bool = False,
        prompt_name: str | None = None,
    ) -> Tokenized:
        """Tokenize a text or a pair of texts.

        Args:
            pair: the second text; empty: no second text
            truncate, split_special_tokens, prompt_name: see `ReadingKeywords`

        Raises:
            TooManyTokensError: there are more tokens than the model reads, or the question leaves
                no room for the truncated context.
            RejectedError: the text has unknown symbols, or the tokenizer fails.
            DragomanError: the model has no such prompt.
        """
        text = self._prompts.before(prompt_name) + text
        try:
            for part in (text, pair or ""):
                part.encode()  # the library rejects lone surrogates
                if not truncate:
                    check_length(self._codec, part, self._longest, split=split_special_tokens)
            if truncate and self._cut == "only_second":
                self._check_first(text, split_special_tokens)
            encoding = self._encode(text, pair, truncate, split_special_tokens)
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
        return self._codec.piece(token)

    def text(self, token: int) -> str:
        """Decode a token as a word; special tokens as the vocabulary spells them."""
        return self._codec.decode([token]).strip() or self.piece(token) or ""

    def after(self, token: int, following: int) -> str | None:
        """Return the text that `following` adds to the word of `token`; None for a new word."""
        before, both = self._codec.decode([token]), self._codec.decode([token, following])
        added = both.removeprefix(before)
        goes_on = before.strip() and both.startswith(before) and added.strip()
        return added if goes_on and not added[0].isspace() else None

    def _check_first(self, text: str, split: bool) -> None:
        """Check that the question leaves room for a token of the context.

        Only the context is truncated, and without room for it the library fails.
        """
        around = self._reader.tokenizer.num_special_tokens_to_add(True)
        room = max(0, self._longest - around - 1)
        expected = f"expected at most {room}: only the context is cut"
        try:
            check_length(self._codec, text, room, split=split)
        except TooLongError as error:
            raise TooManyTokensError(f"the question has {error}, {expected}") from error
        tokens = len(
            self._reader.encode(text, special_tokens=False, split_special_tokens=split).ids
        )
        if tokens > room:
            raise TooManyTokensError(f"the question has {tokens} tokens, {expected}")

    def _encode(self, text: str, pair: str | None, truncate: bool, split: bool) -> Encoding:
        return self._reader.encode(
            text,
            pair or None,
            special_tokens=True,
            split_special_tokens=split,
            truncation={"max_length": self._longest, "strategy": self._cut} if truncate else None,
        )
