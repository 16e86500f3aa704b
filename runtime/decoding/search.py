"""What strategies have in common: hypotheses, and the interface to the decoding loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Candidates, Prediction, Step
from .logits_processors import Row
from .request import Request, Rules

Alternatives = tuple[tuple[int, float], ...]
"""Tokens and their log-probabilities, best first."""


class Need(NamedTuple):
    """What a strategy must see of the next prediction beside the graph's own choice.

    Attributes:
        candidates: this many of the best tokens of each row
        logits: all logits
    """

    candidates: int = 0
    logits: bool = False


NOTHING = Need()


class Continuation(NamedTuple):
    """How the rows of a request go on.

    Attributes:
        tokens: of each row
        parents: which of the request's rows each row continues; None: itself. A row that another
            one continues stays where it is.
    """

    tokens: Sequence[int]
    parents: Sequence[int] | None = None


class Outlook:
    """A prediction for all rows of a batch, with what strategies need of it at hand.

    Args:
        candidates: how many were asked for; those of fewer are their beginning
    """

    def __init__(self, prediction: Prediction, candidates: int) -> None:
        self._prediction = prediction
        self._candidates = prediction.candidates(candidates) if candidates else None
        self._take(prediction.choice)

    def _take(self, step: Step) -> None:
        self._tokens: list[int] = step.tokens.tolist()
        self._log_probabilities: list[float] = step.log_probabilities.tolist()

    @property
    def rows(self) -> int:
        """Of the batch."""
        return len(self._tokens)

    def is_finite(self, row: int, width: int) -> bool:
        """Whether the probabilities of some rows' choices are numbers."""
        return all(map(math.isfinite, self._log_probabilities[row : row + width]))

    def choice(self, row: int) -> tuple[int, float]:
        """The graph's own choice and its log-probability."""
        return self._tokens[row], self._log_probabilities[row]

    def candidates(self, row: int, width: int, count: int) -> Candidates:
        """The best tokens of some rows: [width, count]."""
        if self._candidates is None:
            raise ValueError("no candidates were asked for")
        tokens, log_probabilities = self._candidates
        rows = slice(row, row + width)
        return Candidates(tokens[rows, :count], log_probabilities[rows, :count])

    def alternatives(self, row: int, count: int) -> Alternatives:
        """The best tokens of a row and their log-probabilities, both among those that are not
        suppressed; none that are impossible.
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
        """The log-probability of all tokens together that are not suppressed: log-probabilities
        among all tokens less this are log-probabilities among them. Candidates were asked for.
        """
        if self._candidates is None:
            raise ValueError("no candidates were asked for")
        best = self._candidates.log_probabilities[row, :1].tolist()
        return best[0] - self.choice(row)[1] if best else 0.0

    def logits(self, row: int, width: int) -> NDArray[np.float32]:
        """A copy of the logits of some rows: [width, V]."""
        return self._prediction.logits[row : row + width].copy()

    def logit(self, row: int, token: int) -> float:
        return float(self._prediction.logits[row, token])

    def normalizer(self, row: int) -> float:
        """Logits less this are log-probabilities among all tokens."""
        return float(self._prediction.normalizers[row])

    def allowed_normalizer(self, row: int) -> float:
        """Logits less this are log-probabilities among all tokens that are not suppressed."""
        token, log_probability = self.choice(row)
        return self.logit(row, token) - log_probability


class ChosenOutlook(Outlook):
    """Of a step that has fed back the graph's own choice, and of which no more is known."""

    def __init__(self, step: Step) -> None:
        self._take(step)


@dataclass
class Draft:
    """An output while it is decoded, or when it has ended.

    Attributes:
        row: its tokens so far, with those of the prompt
        begin: where the new tokens begin in `row.tokens`
        log_probabilities: of each new token, among those that are not suppressed; 0 of forced ones
        alternatives: of each new token
        score: what ranks it among others
        end_token: the token that ended it, which is the last one; None: it has not ended, or its
            limit ended it
    """

    row: Row
    begin: int
    log_probabilities: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    score: float = 0.0
    end_token: int | None = None

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
        return math.fsum(self.log_probabilities)

    def give(self, token: int) -> None:
        """The decoder is given a token that is not a new one."""
        self.row.tokens.append(token)
        self.begin += 1

    def append(self, token: int, log_probability: float, alternatives: Alternatives = ()) -> None:
        self.row.tokens.append(token)
        self.log_probabilities.append(log_probability)
        self.alternatives.append(alternatives)

    def followed_by(self, token: int, log_probability: float, alternatives: Alternatives) -> Draft:
        """A new hypothesis with one more token."""
        return Draft(
            Row(self.row.source, [*self.row.tokens, token]),
            self.begin,
            [*self.log_probabilities, log_probability],
            [*self.alternatives, alternatives],
        )


class Search(Protocol):
    """A request while it is decoded: `width` rows of a batch are its own."""

    @property
    def draft(self) -> Draft:
        """The first; given tokens are appended to its row before the first `advance`."""

    def need(self) -> Need:
        """What `advance` must see."""

    def advance(self, outlook: Outlook, row: int) -> Continuation:
        """Take the next token of each of the request's rows, the first of which is `row`."""

    @property
    def finished(self) -> bool: ...

    def outputs(self) -> list[Draft]:
        """What it has found when it is finished, best first; none if the rules leave no token."""


class Strategy(Protocol):
    """How an output is searched for."""

    @property
    def width(self) -> int:
        """The rows of a batch that a request takes."""

    def begin(self, request: Request) -> Search:
        """The search for the output of a request."""


def first_draft(request: Request) -> Draft:
    """Nothing decoded yet; a forced first token counts as decoded."""
    tokens = list(request.prompt)
    draft = Draft(Row(request.source_tokens, tokens), len(tokens))
    rules = request.rules
    forced = rules.forced_first
    if forced is not None:
        last = rules.forced_last if rules.limit == 1 else None
        draft.append(forced if last is None else last, 0.0)
    return draft


def finish(draft: Draft, rules: Rules) -> bool:
    """Whether a hypothesis has ended with its last token; its end token is set."""
    token = draft.row.tokens[-1]
    if token in rules.end_tokens:
        draft.end_token = token
    return draft.end_token is not None or draft.count >= rules.limit
