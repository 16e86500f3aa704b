"""What generation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["end", "length", "empty", "rejected"]


@dataclass(frozen=True)
class Segment:
    """What is said between two times.

    Attributes:
        start: seconds from the begin of the audio
        end: likewise
        text: None for a bundle without tokenizers
        tokens: timestamps included
    """

    start: float
    end: float
    text: str | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """The output for one input.

    Attributes:
        text: the decoded tokens; None for a bundle without tokenizers
        tokens: generated ids, without start and end token; of speech those of the segments
        log_probability: sum of the natural logarithms of the probabilities of the generated
            tokens, the end token's included
        finish_reason: "end": the model produced its end token; "length": the limit was reached;
            "empty": the input had no tokens, and the model was not run; "rejected": the input
            cannot be decoded, and `error` says why. The other inputs are not affected.
        error: the reason for "rejected", else None
        segments: of speech, in order, one at least for each window; of one without timestamps it
            is the whole. None for text.
        language: of speech, the code of the language that was given or detected; None for text and
            for models that are not told one
    """

    text: str | None
    tokens: tuple[int, ...]
    log_probability: float
    finish_reason: FinishReason
    error: str | None = None
    segments: tuple[Segment, ...] | None = None
    language: str | None = None


@dataclass(frozen=True)
class Token:
    """One token of a stream.

    Attributes:
        id: the token
        text: what it adds to the text; may be empty while a symbol is incomplete. None for a
            bundle without tokenizers.
        log_probability: natural logarithm of its probability
    """

    id: int
    text: str | None
    log_probability: float
