"""What an encoder alone says of a text. A text that it cannot read has an `error`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Embedding:
    """
    Attributes:
        vector: float32 [D]; empty if there is an error
        truncated: whether the text was cut
    """

    vector: NDArray[np.float32]
    error: str | None = None
    truncated: bool = False


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """
    Attributes:
        states: float32 [tokens, d_model]; empty if there is an error
        truncated: whether the text was cut
    """

    states: NDArray[np.float32]
    error: str | None = None
    truncated: bool = False


@dataclass(frozen=True)
class ScoredLabel:
    """
    Attributes:
        score: its probability; of a model with one label alone, the number that it estimates
    """

    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """
    Attributes:
        labels: all, best first; none if there is an error
        truncated: whether the text was cut
    """

    labels: tuple[ScoredLabel, ...] = ()
    error: str | None = None
    truncated: bool = False

    @property
    def label(self) -> str:
        """The best; "" if there is an error."""
        return self.labels[0].label if self.labels else ""


@dataclass(frozen=True)
class Tag:
    """A part of a text, and what it is.

    Attributes:
        start, end: which characters of the text it is; -1 of token ids
        text: those characters; None of token ids
        probability: of the label; of several words together, the mean
    """

    label: str
    probability: float
    start: int
    end: int
    text: str | None


@dataclass(frozen=True)
class Tagging:
    """
    Attributes:
        words: every word, with the label of its first token; of token ids, every token
        entities: words that go together by the scheme of labels B-X, I-X and O (Ramshaw & Marcus
            1995); empty with other labels
        truncated: whether the text was cut
    """

    words: tuple[Tag, ...] = ()
    entities: tuple[Tag, ...] = ()
    error: str | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Candidate:
    """A token that may stand in place of a mask.

    Attributes:
        text: None for a bundle without tokenizers
    """

    token: int
    text: str | None
    probability: float


@dataclass(frozen=True)
class Filling:
    """
    Attributes:
        text: the text with the best candidates in place of its masks; None of token ids
        masks: for each mask, its best candidates, best first
        truncated: whether the text was cut
    """

    text: str | None = None
    masks: tuple[tuple[Candidate, ...], ...] = ()
    error: str | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Answer:
    """
    Attributes:
        text: a part of the context; None if there is an error
        probability: that it begins and ends where it does
        start, end: which characters of the context it is
        truncated: whether the context was cut
    """

    text: str | None = None
    probability: float = 0.0
    start: int = -1
    end: int = -1
    error: str | None = None
    truncated: bool = False
