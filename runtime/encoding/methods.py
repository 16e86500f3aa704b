"""The methods of `Model` for encoder-only models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import shown

from ..arguments import CancelEvent, check_count, stop_check
from ..decoding.results import RejectedError
from .front_end import EncoderFrontEnd
from .results import (
    Answer,
    Classification,
    Filling,
    RankedDocument,
    Tagging,
    arrays,
    check_dimensions,
    finished_as_arrays,
    stacked,
)
from .tasks import TEMPLATE, ZeroShot, ranked
from .tokenizer import ReadingKeywords


class EncoderMethods(ABC):
    """The methods of `Model` for encoder-only models."""

    @abstractmethod
    def _encoder(self, method: str, inputs: object) -> EncoderFrontEnd:
        """Return the front end for a call."""

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
            RejectedError: a text cannot be read, or an embedding has fewer dimensions.
            AbilityError: the model has another head.
        """
        encoder = self._encoder("encode", texts)
        check_dimensions(dimensions, encoder.head.outputs)
        with finished_as_arrays():
            embeddings = encoder.embeddings(texts, stop_check(timeout, cancel), **reading)
        return stacked(embeddings, encoder.head.outputs, dimensions)

    def hidden_states(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[NDArray[np.float32]]:
        """Compute the last hidden state of every token, also of special tokens; see `encode`.

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

        Returns:
            results in the order of `texts`, with an `error` for a text that cannot be read

        Raises:
            AbilityError: the model has another head.
        """
        encoder = self._encoder("classify", texts)
        return encoder.classify(texts, stop_check(timeout, cancel), **reading)

    def classify_zero_shot(
        self,
        texts: Sequence[str],
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Classification]:
        """Classify texts by labels that the model was not trained on.

        A model of natural language inference judges whether each text entails a hypothesis about
        each label. The probabilities are those of the pipeline `zero-shot-classification` of
        transformers.

        Args:
            labels: at most 1,000 different texts
            hypothesis_template: the hypothesis, with `{}` where the label goes
            multi_label: whether several labels may be true, each with a probability of its own,
                instead of probabilities that sum to 1
            reading: see `ReadingKeywords`; `truncate` never cuts the hypothesis

        Returns:
            results as of `classify`, each with all labels, best first

        Raises:
            AbilityError: the model has another head, or no label for entailment.
            DragomanError: labels or template are not as described.
        """
        encoder = self._encoder("classify_zero_shot", texts)
        zero_shot = ZeroShot.of(labels, hypothesis_template, multi_label)
        check = stop_check(timeout, cancel)
        return encoder.classify(texts, check, zero_shot=zero_shot, **reading)

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
            reading: see `ReadingKeywords`; `truncate` leaves out the end of long documents

        Returns:
            the documents, best first, then those that cannot be read, which have an `error`

        Raises:
            AbilityError: the model has another head, or several labels.
            RejectedError: the query is no text, or a blank one.
        """
        encoder = self._encoder("rerank", documents)
        pairs = pairs_of(encoder, query, documents, top, reading)
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
        """
        encoder = self._encoder("fill", texts)
        check_count("top", top)
        return encoder.fill(texts, stop_check(timeout, cancel), top=top, **reading)

    def answer(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        longest: int = 15,
        stride: int | None = None,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **reading: Unpack[ReadingKeywords],
    ) -> list[Answer]:
        """Find the spans of contexts that answer questions; see `classify`.

        Args:
            longest: maximum number of tokens in an answer
            stride: tokens that the windows of a context share that is too long, `doc_stride` of
                transformers: the best answer of all windows is returned. None: it is rejected, or
                cut with `truncate`
        """
        encoder = self._encoder("answer", pairs)
        check_count("longest", longest)
        if stride is not None:
            check_count("stride", stride)
        check = stop_check(timeout, cancel)
        return encoder.answer(pairs, check, longest=longest, stride=stride, **reading)


def pairs_of(
    encoder: EncoderFrontEnd,
    query: object,
    documents: Sequence[str],
    top: object,
    reading: ReadingKeywords,
) -> list[tuple[str, str]]:
    """Return the pairs of a query and each document, after checking the arguments of `rerank`."""
    query = check_query(query)
    try:
        encoder.tokenize(query, **reading)
    except RejectedError as error:
        raise RejectedError(f"query: {error}") from error
    if top is not None:
        check_count("top", top)
    return [(query, document) for document in documents]


def check_query(query: object) -> str:
    """Return the query of `rerank`, or raise a `RejectedError` if it is blank or no text."""
    if not isinstance(query, str) or not query.strip():
        raise RejectedError(f"query: expected a text, found {shown(query)}")
    return query
