"""Beam search in PyTorch, without a cache (Sutskever et al. 2014, section 3.2): slow, and the
oracle of every other.

It finds what `generate` of Hugging Face finds (`transformers` 5.23, `_beam_search`), where
- a batch is decoded until the last of its sources is done, and sources that are done earlier are
  frozen one by one. Here each is decoded alone, which is the same;
- copies with scores of -1e9 and less fill up where the rules leave fewer continuations than there
  are beams, and may be returned. Here there are fewer hypotheses. (Copies count as finished: with
  `early_stopping` True, a search among fewer tokens than beams may end sooner there.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decoding import AutoregressiveModel, most_new_tokens
from .generation import GenerationConfig
from .transformer import Source


@dataclass(frozen=True)
class Hypothesis:
    """An output that beam search found.

    Attributes:
        tokens: generated ids, without start token and prompt, up to and including the end token
        score: what ranks it: its log-probability divided by its length to the power of
            `length_penalty`; all tokens count
        token_log_probabilities: of each token, in nats, under the rules: 0 if it was forced, and
            otherwise the model's own times any repetition penalty
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
    """The best hypotheses for each source. Every step recomputes all targets.

    Args:
        sources: as for `greedy_uncached`
        max_new_tokens: maximum number of tokens to generate, including the end token; what reaches
            it is finished
        generation: the rules, `num_beams`, `length_penalty` and `early_stopping`; None: the model's

    Returns:
        best first, `num_beams` for each source (Hugging Face's `num_return_sequences` takes the
        first so many); fewer if there are not as many, none if the rules leave no token before
        any is finished
    """
    generation = generation or model.generation
    return [_search(model, source, max_new_tokens, generation) for source in sources]


def _search(
    model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
) -> list[Hypothesis]:
    beams, penalty = generation.num_beams, generation.length_penalty
    ends = generation.end_tokens(model.config.end_token_id)
    limit = most_new_tokens(model, model.prompt(source), limit)
    continuations = _Continuations(model, source, limit, generation)
    running = [_Beam((), ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = continuations.best(running)
        finished += [
            Hypothesis(beam.tokens, beam.score(length, penalty), beam.log_probabilities)
            for beam in candidates[:beams]  # the others only take the places of these
            if length == limit or beam.tokens[-1] in ends
        ]
        finished = sorted(finished, key=lambda hypothesis: hypothesis.score, reverse=True)[:beams]
        running = [beam for beam in candidates if beam.tokens[-1] not in ends][:beams]
        if not running or _is_done(running[0], finished, length, limit, generation):
            break
    return finished


@dataclass(frozen=True)
class _Beam:
    """The beginning of an output, with the log-probability of each token."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    def score(self, length: int, length_penalty: float) -> float:
        return math.fsum(self.log_probabilities) / length**length_penalty


def _is_done(
    best: _Beam, finished: list[Hypothesis], length: int, limit: int, generation: GenerationConfig
) -> bool:
    """Whether to end the search before the limit.

    Args:
        best: of those that go on
        length: of each of these
    """
    if len(finished) < generation.num_beams:
        return False
    if generation.early_stopping is True:
        return True
    # The best score in reach is estimated as if further tokens cost nothing: at the present length,
    # which misses better ones if longer is better, or at the length that makes most of it.
    if generation.early_stopping == "never" and generation.length_penalty > 0:
        length = limit
    return best.score(length, generation.length_penalty) <= finished[-1].score


class _Continuations:
    """What may follow the beginnings of an output for one source."""

    def __init__(
        self, model: AutoregressiveModel, source: Source, limit: int, generation: GenerationConfig
    ) -> None:
        self._limit, self._generation = limit, generation
        self._source, self._prompt = model.source_tokens(source), model.prompt(source)
        self._end_tokens = generation.end_tokens(model.config.end_token_id)
        # Each beam may end with each end token: as many others are left as there are beams.
        self._count = (1 + len(self._end_tokens)) * generation.num_beams
        self._logits = model.target_logits([source])

    def best(self, beams: Sequence[_Beam]) -> list[_Beam]:
        """The beams by one token longer, the most probable first; of equals, the first beam's,
        then the lowest token's.
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
        """Log-probabilities of the next token under the rules, float64 [beams, V]."""
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
