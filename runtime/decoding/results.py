"""What generation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..backends.errors import DeviceLostError

FinishReason = Literal["end", "length", "empty", "rejected"]


@dataclass(frozen=True)
class Segment:
    """What is said between two times.

    Attributes:
        start: seconds from the beginning of the audio
        end: likewise
        text: None for a bundle without tokenizers
        tokens: including timestamps
    """

    start: float
    end: float
    text: str | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Alternative:
    """One of the best tokens at a step.

    Attributes:
        token: its id
        text: the token on its own; None for a bundle without tokenizers
        log_probability: natural logarithm of its probability among all tokens
    """

    token: int
    text: str | None
    log_probability: float


@dataclass(frozen=True)
class Hypothesis:
    """One of the outputs for an input.

    Attributes:
        text: the decoded tokens; None for a bundle without tokenizers
        tokens: generated ids, without start and end token; they begin with the prefix, if any,
            after a token that is forced to be the first, such as a language
        score: what ranks it: with beams, the sum of log-probabilities after all rules, divided by
            length ** length_penalty, the end token counted and the prefix not; else the same as
            `log_probability`
        log_probability: sum of `token_log_probabilities`
        finish_reason: "end": the model produced its end token; "length": the limit was reached
        end_token: the token that ended it; None: the limit did
        token_log_probabilities: of each of `tokens` and of the end token, if there is one, natural
            logarithms of the model's own probabilities; 0 for tokens that were given or forced
        alternatives: the best tokens at each of these steps, best first; none where a token was
            given or forced, and none at all unless they were asked for
    """

    text: str | None
    tokens: tuple[int, ...]
    score: float
    log_probability: float
    finish_reason: Literal["end", "length"]
    end_token: int | None
    token_log_probabilities: tuple[float, ...]
    alternatives: tuple[tuple[Alternative, ...], ...] = ()


@dataclass(frozen=True)
class Result:
    """The output for one input.

    Attributes:
        text: the decoded tokens; None for a bundle without tokenizers
        tokens: generated ids, without start and end token; of speech those of the segments
        log_probability: sum of the natural logarithms of the probabilities of the generated
            tokens, including the end token
        finish_reason: "end": the model produced its end token; "length": the limit was reached;
            "empty": the input had no tokens, and the model was not run; "rejected": the input
            cannot be decoded, and `error` says why. The other inputs are not affected.
        error: the reason for "rejected", else None
        segments: of speech, in order, at least one for each window; without timestamps a single
            one. None for text.
        language: of speech, the code of the requested or detected language; None for text and for
            models that are not told one
        end_token: the token that ended the output, which of speech is that of the last window;
            None: the limit did, or there is no output
        score: of texts, that of the best hypothesis; of speech, the sum of those of the windows
        hypotheses: of texts, as many as were asked for; the first is the output. Those of beams are
            ranked, samples are in the order of their numbers. None of an input that was not
            decoded, and none of speech, which is decoded in windows
    """

    text: str | None
    tokens: tuple[int, ...]
    log_probability: float
    finish_reason: FinishReason
    error: str | None = None
    segments: tuple[Segment, ...] | None = None
    language: str | None = None
    end_token: int | None = None
    score: float = 0.0
    hypotheses: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class Token:
    """One token of a stream.

    Attributes:
        id: the token
        text: what it adds to the text; empty while a symbol is incomplete. None for a bundle
            without tokenizers.
        log_probability: natural logarithm of its probability
    """

    id: int
    text: str | None
    log_probability: float


class UnfinishedError(DeviceLostError):
    """The device failed for good in the middle of a call.

    Attributes:
        finished: the results that were complete by then, by index of their source
    """

    def __init__(self, message: str, finished: dict[int, Result]) -> None:
        super().__init__(message)
        self.finished = finished
