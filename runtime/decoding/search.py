"""Sequences, the scores of a step, and the interface of strategies and their searches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Candidates, Prediction, StepOutput
from .logits_processors import Row
from .request import Request, Rules

Alternatives = tuple[tuple[int, float], ...]
"""Token ids and their log-probabilities, best first."""


class RequiredOutputs(NamedTuple):
    """The outputs of a step that a search requires besides the token that the graph selects."""

    candidates: int = 0
    """Number of best tokens of each row."""
    logits: bool = False


SELECTED_TOKENS = RequiredOutputs()
"""Requires only the tokens that the graph selects."""


class NextTokens(NamedTuple):
    """The next tokens and parents of a request's rows."""

    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    """Row of the request that each row continues; None: each row continues itself. The parent of
    another row also continues itself."""


class StepScores:
    """The scores of the next tokens of all rows of a batch.

    Without `prediction`, only the selected tokens are known.
    """

    def __init__(
        self,
        step: StepOutput,
        prediction: Prediction | None = None,
        candidates: Candidates | None = None,
    ) -> None:
        self._tokens: list[int] = step.tokens.tolist()
        self._log_probabilities: list[float] = step.log_probabilities.tolist()
        self._prediction, self._candidates = prediction, candidates

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        return len(self._tokens)

    def is_finite(self, row: int, width: int) -> bool:
        """Return whether the log-probabilities of `width` rows from `row` on are finite."""
        return all(map(math.isfinite, self._log_probabilities[row : row + width]))

    def selected(self, row: int) -> tuple[int, float]:
        """Return the token that the graph selected, and its log-probability."""
        return self._tokens[row], self._log_probabilities[row]

    def candidates(self, row: int, width: int, count: int) -> Candidates:
        """Return the best tokens of `width` rows: [width, count]."""
        tokens, log_probabilities = self._read_candidates()
        rows = slice(row, row + width)
        return Candidates(tokens[rows, :count], log_probabilities[rows, :count])

    def alternatives(self, row: int, count: int) -> Alternatives:
        """Return the best tokens of a row, with log-probabilities among unsuppressed tokens.

        Tokens with probability 0 are omitted.
        """
        if not count:
            return ()
        best, allowed = self.candidates(row, 1, count), self.allowed(row)
        return tuple(
            (token, log_probability - allowed)
            for token, log_probability in zip(
                best.tokens[0].tolist(), best.log_probabilities[0].tolist(), strict=True
            )
            if log_probability > -math.inf
        )

    def allowed(self, row: int) -> float:
        """Return the log-probability of all unsuppressed tokens together."""
        best = self._read_candidates().log_probabilities[row, :1].tolist()
        return best[0] - self.selected(row)[1] if best else 0.0

    def logits(self, row: int, width: int) -> NDArray[np.float32]:
        """Return a copy of the logits of `width` rows: [width, V]."""
        return self._read_prediction().logits[row : row + width].copy()

    def logit(self, row: int, token: int) -> float:
        """Return the logit of a token."""
        return float(self._read_prediction().logits[row, token])

    def normalizer(self, row: int) -> float:
        """Return logit minus log-probability, with probabilities over all tokens."""
        return float(self._read_prediction().normalizers[row])

    def allowed_normalizer(self, row: int) -> float:
        """Return logit minus log-probability, with probabilities over unsuppressed tokens."""
        token, log_probability = self.selected(row)
        return self.logit(row, token) - log_probability

    def _read_candidates(self) -> Candidates:
        if self._candidates is None:
            raise ValueError("candidates were not required of this step")
        return self._candidates

    def _read_prediction(self) -> Prediction:
        if self._prediction is None:
            raise ValueError("logits were not required of this step")
        return self._prediction


@dataclass
class TokenSequence:
    """The tokens of an output, complete or not."""

    row: Row
    begin: int
    """Index of the first new token in `row.tokens`."""
    log_probabilities: list[float] = field(default_factory=list)
    """Log-probability of each new token among unsuppressed tokens; 0 for forced tokens."""
    alternatives: list[Alternatives] = field(default_factory=list)
    score: float = 0.0
    end_token: int | None = None
    """The end token, if it is the last token; None: the sequence is incomplete, or ended at its
    limit."""

    @property
    def count(self) -> int:
        """The number of new tokens."""
        return len(self.log_probabilities)

    @property
    def tokens(self) -> list[int]:
        """The new tokens, without the end token."""
        end = len(self.row.tokens) - (self.end_token is not None)
        return self.row.tokens[self.begin : end]

    @property
    def log_probability(self) -> float:
        """The sum of the log-probabilities of the new tokens."""
        return math.fsum(self.log_probabilities)

    def append_prefix(self, token: int) -> None:
        """Append a token of the prefix, which is not a new token."""
        self.row.tokens.append(token)
        self.begin += 1

    def append(self, token: int, log_probability: float, alternatives: Alternatives = ()) -> None:
        """Append a new token."""
        self.row.tokens.append(token)
        self.log_probabilities.append(log_probability)
        self.alternatives.append(alternatives)

    def followed_by(
        self, token: int, log_probability: float, alternatives: Alternatives
    ) -> TokenSequence:
        """Return a new sequence with one more token."""
        return TokenSequence(
            Row(self.row.source, [*self.row.tokens, token]),
            self.begin,
            [*self.log_probabilities, log_probability],
            [*self.alternatives, alternatives],
        )


class Search(Protocol):
    """The search for the output of one request in `width` rows of a batch."""

    @property
    def sequence(self) -> TokenSequence:
        """The first sequence; the prefix is appended to it before the first `advance`."""

    def required_outputs(self) -> RequiredOutputs:
        """Return the outputs of the next step that `advance` requires."""

    def advance(self, scores: StepScores, row: int) -> NextTokens:
        """Choose the next tokens of the request's rows, which begin at `row`."""

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""

    def outputs(self) -> list[TokenSequence]:
        """Return the outputs, best first; empty if the rules leave no token."""


class Strategy(Protocol):
    """A decoding strategy: greedy search, sampling or beam search."""

    @property
    def width(self) -> int:
        """The number of batch rows for a request."""

    def begin(self, request: Request) -> Search:
        """Begin the search for the output of a request."""


def first_sequence(request: Request) -> TokenSequence:
    """Return the sequence before the first step, including a forced first token."""
    tokens = list(request.prompt)
    sequence = TokenSequence(Row(request.source_tokens, tokens), len(tokens))
    rules = request.rules
    forced = rules.forced_first
    if forced is not None:
        last = rules.forced_last if rules.limit == 1 else None
        sequence.append(forced if last is None else last, 0.0)
    return sequence


def finish(sequence: TokenSequence, rules: Rules) -> bool:
    """Set the end token of a sequence that ends with one; return whether it is complete."""
    token = sequence.row.tokens[-1]
    if token in rules.end_tokens:
        sequence.end_token = token
    return sequence.end_token is not None or sequence.count >= rules.limit
