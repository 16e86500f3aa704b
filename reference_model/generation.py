"""Generation settings of a trained model, and the rules that constrain its next token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.settings.generation_settings import GenerationSettings, Part
from dragoman.settings.speech import SpeechTokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(GenerationSettings):
    """How a trained model is decoded, with the meaning of Hugging Face's generation settings."""

    max_new_tokens: int | None = None
    """The default maximum number of tokens to generate; None: unspecified."""
    speech: SpeechTokens | None = None
    """The prompt tokens of a speech model; None: unspecified, or not a speech model."""

    @property
    def is_plain(self) -> bool:
        """Whether no rule changes the logits: the greedy choice is their argmax."""
        return not self.changed(Part.RULES)

    def scores(
        self,
        scores: Tensor,
        source: Sequence[int],
        prompt: list[int],
        new: list[int],
        *,
        end_tokens: Sequence[int],
        limit: int,
    ) -> Tensor:
        """Return the scores [V] of one sequence's next token under the rules.

        A forbidden token has minus infinity and a forced token 0. The greedy choice is the argmax,
        which is 0 if no token is left.

        As in Hugging Face, the rules act on logits in greedy decoding and on log-probabilities in
        beam search, which are normalized again only with `renormalize_logits`.

        Args:
            scores: [V], logits or log-probabilities; not changed
            source: the tokens of the source; none for features
            prompt: start token and prompt
            new: tokens generated so far
            limit: maximum number of new tokens
        """
        count = len(new) + 1
        forced = self.forced_first_token_id if count == 1 else None
        if count == limit and self.forced_last_token_id is not None:
            forced = self.forced_last_token_id
        scores = scores.clone()
        if forced is not None:
            scores[:] = -math.inf
            scores[forced] = 0
            if count == self.first_free:  # Hugging Face suppresses tokens after forced ones
                scores[list(self.first_suppressed_token_ids)] = -math.inf
            return scores
        tokens = prompt + new
        penalty = self.repetition_penalty
        for token in set(tokens) if penalty != 1 else ():
            score = scores[token]
            scores[token] = score * penalty if score < 0 else score / penalty
        scores[list(self.suppressed_token_ids)] = -math.inf
        if count == self.first_free:
            scores[list(self.first_suppressed_token_ids)] = -math.inf
        if len(new) < self.min_new_tokens or len(tokens) < self.min_length:
            scores[list(end_tokens)] = -math.inf
        for token in (
            *_completing(tokens, tokens, self.no_repeat_ngram_size),
            *_completing(tokens, source, self.encoder_no_repeat_ngram_size),
            *(w[-1] for w in self.bad_words if tokens[1 - len(w) :] == list(w[:-1])),
        ):
            scores[token] = -math.inf
        if self.renormalize_logits and scores.max() > -math.inf:
            scores = scores.log_softmax(-1)
        return scores


def _completing(tokens: Sequence[int], earlier: Sequence[int], size: int) -> set[int]:
    """Return the tokens that, after `tokens`, complete an n-gram that occurs in `earlier`."""
    if not size or len(tokens) < size - 1:
        return set()
    ending = list(tokens[len(tokens) - size + 1 :])
    ngrams = [list(earlier[i : i + size]) for i in range(len(earlier) - size + 1)]
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == ending}
