"""Results of encoder-only models. A rejected text has a result with an `error`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arguments import StoppedError, check_count
from ..decoding.results import RejectedError, UnfinishedError

NORMALIZED_WITHIN = 1e-3
"""How far the length of an embedding may be from 1 for it to count as normalized; int8 and int4
change nothing about it, since embeddings are normalized last."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """The embedding of a text."""

    vector: NDArray[np.float32]
    """float32 [D]; empty if there is an error."""
    error: str | None = None
    truncated: bool = False
    """Whether the text was cut."""


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """The last hidden states of a text."""

    states: NDArray[np.float32]
    """float32 [tokens, d_model]; empty if there is an error."""
    error: str | None = None
    truncated: bool = False
    """Whether the text was cut."""


@dataclass(frozen=True)
class ScoredLabel:
    """A label and its score."""

    label: str
    score: float
    """Probability of the label; for a model with a single label, the regression value."""


@dataclass(frozen=True)
class Classification:
    """The labels of a text."""

    labels: tuple[ScoredLabel, ...] = ()
    """All labels, best first; empty if there is an error."""
    error: str | None = None
    truncated: bool = False
    """Whether the text was cut."""

    @property
    def label(self) -> str:
        """The best label; "" if there is an error."""
        return self.labels[0].label if self.labels else ""


@dataclass(frozen=True)
class RankedDocument:
    """A document and its relevance to a query."""

    index: int
    """Place of the document among those that were given."""
    score: float | None
    """Relevance, the higher the better: a probability, or an unbounded number, as the model's
    activation has it; None if there is an error."""
    error: str | None = None
    truncated: bool = False
    """Whether query and document were cut."""


@dataclass(frozen=True)
class Tag:
    """A labelled span of a text."""

    label: str
    probability: float
    """Probability of the label; for an entity, the mean over its words."""
    start: int
    end: int
    """`start` and `end`: character offsets in the text; -1 if the source is token ids."""
    text: str | None
    """The characters of the span; None if the source is token ids."""


@dataclass(frozen=True)
class Tagging:
    """The labels of the words of a text."""

    words: tuple[Tag, ...] = ()
    """Every word with the label of its first token; every token if the source is token ids."""
    entities: tuple[Tag, ...] = ()
    """Words grouped by the labelling scheme B-X, I-X and O (Ramshaw & Marcus 1995); empty for other
    labels."""
    error: str | None = None
    truncated: bool = False
    """Whether the text was cut."""


@dataclass(frozen=True)
class Candidate:
    """A predicted token for a mask."""

    token: int
    text: str | None
    """Text of the token; None if the bundle has no tokenizers."""
    probability: float


@dataclass(frozen=True)
class Filling:
    """The predicted tokens for the masks of a text."""

    text: str | None = None
    """The text with each mask replaced by its best candidate; None if the source is token ids."""
    masks: tuple[tuple[Candidate, ...], ...] = ()
    """Candidates for each mask, best first."""
    error: str | None = None
    truncated: bool = False
    """Whether the text was cut."""


@dataclass(frozen=True)
class Answer:
    """The answer to a question: a span of its context."""

    text: str | None = None
    """The characters of the span; None if there is an error."""
    probability: float = 0.0
    """Probability of this start and end."""
    start: int = -1
    end: int = -1
    """`start` and `end`: character offsets in the context."""
    error: str | None = None
    truncated: bool = False
    """Whether the context was cut."""


def check_dimensions(dimensions: int | None, available: int) -> None:
    """Check that embeddings have as many dimensions; None: all."""
    if dimensions is None:
        return
    check_count("dimensions", dimensions)
    if not 1 <= dimensions <= available:
        raise RejectedError(f"dimensions: expected 1 to {available}, found {dimensions}")


def shortened(vector: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """Return the first components of an embedding, normalized if it is.

    Source: Matryoshka embeddings, Kusupati et al. 2022.
    """
    if dimensions is None:
        return vector
    check_dimensions(dimensions, len(vector))
    kept = vector[:dimensions]
    length, whole = float(np.linalg.norm(kept)), float(np.linalg.norm(vector))
    if abs(whole - 1) > NORMALIZED_WITHIN or not length:
        return kept
    return np.asarray(kept / length, np.float32)


def arrays(results: Sequence[Embedding | HiddenStates]) -> list[NDArray[np.float32]]:
    """Return the array of each text, and warn about truncated texts; a rejected one is an error."""
    for index, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(f"text {index}: {result.error}")
    truncated = sum(result.truncated for result in results)
    if truncated:
        warnings.warn(f"{truncated} of {len(results)} texts were truncated", stacklevel=3)
    return [_array(result) for result in results]


def stacked(
    embeddings: Sequence[Embedding], size: int, dimensions: int | None = None
) -> NDArray[np.float32]:
    """Return embeddings of this size as one array [N, D]; see `arrays` and `shortened`."""
    rows = [shortened(vector, dimensions) for vector in arrays(embeddings)]
    return np.array(rows, np.float32).reshape(len(rows), dimensions or size)


@contextmanager
def finished_as_arrays() -> Iterator[None]:
    """Let errors hold finished results as arrays, without rejected texts."""
    try:
        yield
    except (StoppedError, UnfinishedError) as error:
        read = {index: found for index, found in error.finished.items() if found.error is None}
        error.finished = {index: _array(found) for index, found in read.items()}
        raise


def _array(result: Embedding | HiddenStates) -> NDArray[np.float32]:
    return result.vector if isinstance(result, Embedding) else result.states
