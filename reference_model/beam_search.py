"""Beam search in PyTorch, without a cache (Sutskever et al. 2014, section 3.2).

It is slow and serves as the oracle for every other beam search. It finds the same hypotheses as
`generate` of Hugging Face (`transformers` 5.23, `_beam_search`), which differs in two ways:

- Hugging Face decodes a batch until the last source is done and freezes finished sources. This
  module decodes one source at a time, with the same result.
- If the rules leave fewer next tokens than beams, Hugging Face adds copies with scores of at most
  -1e9 and may return them. This module returns fewer hypotheses. The copies count as finished, so
  that with `early_stopping` True the search of Hugging Face may end sooner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decoding import most_new_tokens
from .generation import GenerationConfig
from .models import AutoregressiveModel, Source


@dataclass(frozen=True)
class Hypothesis:
    """A finished output of beam search.

    Attributes:
        tokens: generated ids, without start token and prompt, up to and including the end token
        score: log-probability of all tokens, divided by their number to the power of
            `length_penalty`; hypotheses are ranked by it
        token_log_probabilities: log-probability of each token under the rules, in nats: 0 for a
            forced token, otherwise the model's value times any repetition penalty
    """

    tokens: tuple[int, ...]
    score: float
    token_log_probabilities: tuple[float, ...]


@torch.inference_mode()
def beam_search_uncached(
    model: AutoregressiveModel,
    sources: Sequence[Source],
    max_new_tokens: int,
    *,
    generation: GenerationConfig | None = None,
) -> list[list[Hypothesis]]:
    """Find the best hypotheses for each source. Every step recomputes all targets.

    Args:
        sources: see `greedy_uncached`
        max_new_tokens: maximum number of tokens to generate, including the end token; a hypothesis
            of that length is finished
        generation: rules and beam search settings; None: the model's

    Returns:
        up to `num_beams` hypotheses for each source, best first (Hugging Face returns the first
        `num_return_sequences`); empty if the rules leave no token before a hypothesis is finished
    """
    generation = generation or model.generation
    return [_search(model, source, max_new_tokens, generation) for source in sources]


def _search(
    model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
) -> list[Hypothesis]:
    beams, penalty = generation.num_beams, generation.length_penalty
    ends = generation.end_tokens(model.config.end_token_id)
    limit = most_new_tokens(model, model.prompt(source), limit)
    next_tokens = _NextTokens(model, source, limit, generation)
    running = [_Beam((), ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = next_tokens.best(running)
        finished += [
            Hypothesis(beam.tokens, beam.score(length, penalty), beam.log_probabilities)
            for beam in candidates[:beams]  # the others only replace finished beams
            if length == limit or beam.tokens[-1] in ends
        ]
        finished = sorted(finished, key=lambda hypothesis: hypothesis.score, reverse=True)[:beams]
        running = [beam for beam in candidates if beam.tokens[-1] not in ends][:beams]
        if not running or _is_done(running[0], finished, length, limit, generation):
            break
    return finished


@dataclass(frozen=True)
class _Beam:
    """An unfinished hypothesis, with the log-probability of each token."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    def score(self, length: int, length_penalty: float) -> float:
        return math.fsum(self.log_probabilities) / length**length_penalty


def _is_done(
    best: _Beam, finished: list[Hypothesis], length: int, limit: int, generation: GenerationConfig
) -> bool:
    """Return whether to end the search before the limit.

    Args:
        best: the best unfinished hypothesis
        length: number of tokens of each unfinished hypothesis
    """
    if len(finished) < generation.num_beams:
        return False
    if generation.early_stopping is True:
        return True
    # The best possible score assumes probability 1 for further tokens. At the present length, it
    # misses better scores if longer is better; otherwise it is taken at the most favourable length.
    if generation.early_stopping == "never" and generation.length_penalty > 0:
        length = limit
    return best.score(length, generation.length_penalty) <= finished[-1].score


class _NextTokens:
    """The next tokens of unfinished hypotheses for one source."""

    def __init__(
        self, model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
    ) -> None:
        self._limit, self._generation = limit, generation
        self._source, self._prompt = model.source_tokens(source), model.prompt(source)
        self._end_tokens = generation.end_tokens(model.config.end_token_id)
        # Each beam may end with each end token; then `num_beams` unfinished hypotheses are left.
        self._count = (1 + len(self._end_tokens)) * generation.num_beams
        self._logits = model.target_logits([source])

    def best(self, beams: Sequence[_Beam]) -> list[_Beam]:
        """Return the most probable beams that are one token longer, best first.

        Ties are in the order of the beams, then of the tokens.
        """
        scores = self._token_scores(beams)
        sums = torch.tensor([math.fsum(b.log_probabilities) for b in beams], dtype=torch.float64)
        total = sums[:, None] + scores
        order = total.flatten().argsort(descending=True, stable=True)[: self._count]
        rows, tokens = order // scores.shape[1], order % scores.shape[1]
        return [
            _Beam((*beams[row].tokens, token), (*beams[row].log_probabilities, score))
            for row, token, score in zip(
                rows.tolist(), tokens.tolist(), scores[rows, tokens].tolist(), strict=True
            )
            if score > -math.inf
        ]

    def _token_scores(self, beams: Sequence[_Beam]) -> Tensor:
        """Compute log-probabilities of the next token under the rules, float64 [beams, V]."""
        logits = self._logits(torch.tensor([[*self._prompt, *beam.tokens] for beam in beams]))
        scores = [
            self._generation.scores(
                row,
                self._source,
                self._prompt,
                list(beam.tokens),
                end_tokens=self._end_tokens,
                limit=self._limit,
            )
            for beam, row in zip(beams, logits[:, -1].log_softmax(-1), strict=True)
        ]
        return torch.stack(scores).double()
