"""The front end of encoder-only models: computes embeddings, labels and answers for texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import shown
from dragoman.settings.head import Head

from ..arguments import CancelEvent, StopCheck, check_count, never_stopped, stop_check
from ..backends.interface import Backend
from ..decoding.results import RejectedError, TooManyTokensError, collected
from ..format.manifest import Manifest
from ..texts.front_end import check_ids, token_ids
from .results import (
    Answer,
    Classification,
    Embedding,
    Filling,
    HiddenStates,
    RankedDocument,
    Tagging,
    arrays,
    check_dimensions,
    finished_as_arrays,
    shortened,
    stacked,
)
from .running import Made, Outputs, run
from .tasks import answer, classification, filling, ranked, tagging
from .tokenizer import InputTokenizer, ReadingKeywords, Tokenized

Result = TypeVar("Result", Embedding, HiddenStates, Classification, Tagging, Filling, Answer)


class EncoderFrontEnd:
    """Encodes texts in batches and interprets the outputs as the model's head requires.

    Args:
        head: the head on top of the encoder
        directory: the bundle's directory
    """

    def __init__(self, manifest: Manifest, head: Head, backend: Backend, directory: Path) -> None:
        self._manifest, self.head, self._backend = manifest, head, backend
        self._longest = backend.limits.source or manifest.model.max_source_positions
        self._tokenizer = None
        if manifest.tokenizers is not None and manifest.tokenizers.source is not None:
            self._tokenizer = InputTokenizer.of(
                directory / manifest.tokenizers.source,
                self._longest,
                head,
                manifest.tokenizers.prompts,
            )

    def embeddings(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Embedding]:
        """Return the embedding of each source."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: Embedding(outputs.read("embedding"), truncated=text.truncated),
            lambda reason: Embedding(np.empty(0, np.float32), reason),
        )

    def hidden_states(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[HiddenStates]:
        """Return the last hidden states of each source."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: HiddenStates(outputs.read("hidden"), truncated=text.truncated),
            lambda reason: HiddenStates(np.empty((0, 0), np.float32), reason),
        )

    def classify(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify each text or pair of texts."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, _: classification(outputs, self.head, text),
            lambda reason: Classification(error=reason),
        )

    def tag(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Tagging]:
        """Label the words of each text."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, source: tagging(outputs, self.head, text, _text(source)),
            lambda reason: Tagging(error=reason),
        )

    def fill(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        *,
        top: int,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Filling]:
        """Predict the `top` most probable tokens for each mask of each text."""

        def result(outputs: Outputs, text: Tokenized, source: Any) -> Filling:
            if self.head.mask_token_id not in text.ids:
                mask = self.head.mask_token_id or 0
                name = "" if self._tokenizer is None else f" ({self._tokenizer.piece(mask)})"
                return Filling(error=f"expected a mask{name}, found none")
            return filling(outputs, self.head, text, _text(source), self._tokenizer, top)

        return self._each(sources, check, reading, result, lambda reason: Filling(error=reason))

    def answer(
        self,
        sources: Sequence[Any],
        check: StopCheck = never_stopped,
        *,
        longest: int,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Answer]:
        """Answer questions, each a pair of question and context, in at most `longest` tokens."""
        return self._each(
            sources,
            check,
            reading,
            lambda outputs, text, source: answer(outputs, text, source[1], longest),
            lambda reason: Answer(error=reason),
        )

    def tokenize(self, source: Any, **reading: Unpack[ReadingKeywords]) -> Tokenized:
        """Return the tokens of a source.

        Raises:
            RejectedError: the source is not an input of this model, or is too long and `truncate`
                is False.
        """
        text = self._tokens(source, **reading)
        check_ids(text.ids, self._manifest.model.source_vocab_size or 0)
        if not text.ids:
            raise RejectedError("expected at least one token, found none")
        return text

    def piece(self, token: int) -> str:
        """Return a token as the vocabulary spells it; its id if the bundle has no tokenizers."""
        piece = None if self._tokenizer is None else self._tokenizer.piece(token)
        return str(token) if piece is None else piece

    def _each(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        result: Callable[[Outputs, Tokenized, Any], Result],
        failed: Callable[[str], Result],
    ) -> list[Result]:
        """Compute the result of each source; `failed` creates results of rejected sources.

        Raises:
            StoppedError: `check` stopped the call; holds the finished results.
            UnfinishedError: the device failed permanently; holds the finished results.
        """
        made = self._made(sources, check, reading, result)
        results = ((i, failed(str(m)) if isinstance(m, RejectedError) else m) for i, m in made)
        return collected(results, len(sources))

    def _made(
        self,
        sources: Sequence[Any],
        check: StopCheck,
        reading: ReadingKeywords,
        make: Callable[[Outputs, Tokenized, Any], Made],
    ) -> Iterator[tuple[int, Made | RejectedError]]:
        """Yield the index of each source with its result, or the reason why it was rejected."""
        good: list[tuple[int, Tokenized]] = []
        for index, source in enumerate(sources):
            check()
            text = self._try(source, reading)
            if isinstance(text, RejectedError):
                yield index, text
            else:
                good.append((index, text))
        found = run(
            self._backend,
            self._manifest,
            self.head,
            [text for _, text in good],
            lambda number, outputs: make(outputs, good[number][1], sources[good[number][0]]),
            check,
        )
        yield from ((good[number][0], made) for number, made in found)

    def _try(self, source: Any, reading: ReadingKeywords) -> Tokenized | RejectedError:
        try:
            return self.tokenize(source, **reading)
        except TooManyTokensError as error:
            if reading.get("truncate"):
                return error
            return RejectedError(f"{error}; truncate=True (--truncate) leaves out the rest")
        except RejectedError as error:
            return error

    def _tokens(self, source: Any, **reading: Unpack[ReadingKeywords]) -> Tokenized:
        answers = self.head.task == "question-answering"
        pairs = answers or self.head.task == "sequence-classification"
        if isinstance(source, str) or _is_pair(source):
            if self._tokenizer is None:
                expected = "a bundle with them, since answers are text" if answers else "token ids"
                raise RejectedError(f"this bundle has no tokenizers: expected {expected}")
            if isinstance(source, str):
                if answers:
                    raise RejectedError("expected a pair of question and context, found one text")
                return self._tokenizer.encode(source, **reading)
            if not pairs:
                raise RejectedError("expected a text, found a pair: this model reads one text")
            return self._tokenizer.encode(*source, **reading)
        if answers:
            raise RejectedError("expected a pair of question and context, both texts")
        ids = token_ids(source, or_text="a text or ")
        if len(ids) > self._longest and not reading.get("truncate"):
            raise TooManyTokensError(
                f"source has {len(ids)} tokens, expected at most {self._longest}"
            )
        kept = ids[: self._longest]
        none: list[int | None] = [None] * len(kept)
        return Tokenized(kept, [0] * len(kept), [], none, none, truncated=len(kept) < len(ids))


def _is_pair(source: Any) -> bool:
    pair = isinstance(source, tuple | list) and len(source) == 2
    return pair and all(isinstance(text, str) for text in source)


def _text(source: Any) -> str | None:
    """Return the text of a source; None if the source is token ids."""
    return source if isinstance(source, str) else None


LineSource = str | tuple[str, str]
"""A text or a pair of texts."""


def source_of_line(line: str, head: Head) -> LineSource:
    """Parse a line of input: a text, or a pair of texts with a tab between them.

    Question answering requires a pair, classification accepts a text or a pair.

    Raises:
        RejectedError: a pair is required, and the line has no tab.
    """
    first, tab, second = line.partition("\t")
    if head.task == "question-answering":
        if not tab:
            raise RejectedError("expected a question, a tab and a context, found no tab")
        return first, second
    return (first, second) if head.task == "sequence-classification" and tab else line


class EncoderMethods(ABC):
    """The methods of `Model` for encoder-only models."""

    @abstractmethod
    def _encoder(self, method: str, inputs: object) -> EncoderFrontEnd:
        """Return the front end, for a call of a method with a list of inputs.

        Raises:
            ClosedModelError: the model is closed.
            AbilityError: the model does not have the method.
            DragomanError: `inputs` is not a list.
        """

    def encode(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> NDArray[np.float32]:
        """Compute the embeddings of texts.

        Args:
            texts: texts of any length, or token ids with the special tokens that the model expects
            dimensions: the first components to return, normalized if the embedding is; None: all
            reading: see `ReadingKeywords`; a warning counts the truncated texts

        Returns:
            embeddings [N, D] in the order of `texts`

        Raises:
            RejectedError: a text cannot be read, for example because it is too long; or an
                embedding has fewer dimensions.
            AbilityError: the model has another head.
        """
        encoder = self._encoder("encode", texts)
        if dimensions is not None:
            check_count("dimensions", dimensions)
            check_dimensions(dimensions, encoder.head.outputs)
        with finished_as_arrays():
            embeddings = encoder.embeddings(texts, stop_check(timeout, cancel), **reading)
        whole = stacked(embeddings, encoder.head.outputs)
        if dimensions is None:
            return whole
        rows = [shortened(row, dimensions) for row in whole]
        return np.array(rows, np.float32).reshape(len(rows), dimensions)

    def hidden_states(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[NDArray[np.float32]]:
        """Compute the last hidden state of every token, special tokens included.

        Arguments and errors are as for `encode`.

        Returns:
            float32 [tokens, d_model] for each text
        """
        encoder = self._encoder("hidden_states", texts)
        with finished_as_arrays():
            states = encoder.hidden_states(texts, stop_check(timeout, cancel), **reading)
        return arrays(states)

    def classify(
        self,
        texts: Sequence[str | tuple[str, str] | Sequence[int]],
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify texts, or pairs of texts.

        Args:
            reading: see `ReadingKeywords`; `truncate` sets `truncated` in the result

        Returns:
            results in the order of `texts`. A text that cannot be read has an `error`; other texts
            are not affected.

        Raises:
            AbilityError: the model has another head.
        """
        encoder = self._encoder("classify", texts)
        return encoder.classify(texts, stop_check(timeout, cancel), **reading)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top: int | None = None,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[RankedDocument]:
        """Rank documents by their relevance to a query, as a cross-encoder scores each pair.

        Args:
            top: maximum number of documents to return; None: all
            reading: see `ReadingKeywords`; `truncate` leaves out the end of long documents

        Returns:
            the documents, best first, then those that cannot be read, which have an `error`

        Raises:
            AbilityError: the model has another head, or several labels.
            RejectedError: the query is not a text.
        """
        encoder = self._encoder("rerank", documents)
        if not isinstance(query, str):
            raise RejectedError(f"query: expected a text, found {shown(query)}")
        try:
            encoder.tokenize(query, **reading)
        except RejectedError as error:
            raise RejectedError(f"query: {error}") from error
        if top is not None:
            check_count("top", top)
        pairs = [(query, document) for document in documents]
        return ranked(encoder.classify(pairs, stop_check(timeout, cancel), **reading), top)

    def tag(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Tagging]:
        """Label every word of texts, and the entities that the words form; see `classify`."""
        encoder = self._encoder("tag", texts)
        return encoder.tag(texts, stop_check(timeout, cancel), **reading)

    def fill(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        top: int = 5,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Filling]:
        """Predict the tokens at the masks of texts; see `classify`.

        Args:
            texts: texts with at least one mask, such as `[MASK]`
            top: number of candidates for each mask
        """
        encoder = self._encoder("fill", texts)
        check_count("top", top)
        return encoder.fill(texts, stop_check(timeout, cancel), top=top, **reading)

    def answer(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        longest: int = 15,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Answer]:
        """Find the spans of contexts that answer questions; see `classify`.

        Args:
            pairs: pairs of question and context
            longest: maximum number of tokens in an answer
        """
        encoder = self._encoder("answer", pairs)
        check_count("longest", longest)
        return encoder.answer(pairs, stop_check(timeout, cancel), longest=longest, **reading)
