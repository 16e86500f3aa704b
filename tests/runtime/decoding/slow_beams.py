"""Beam search over whole sequences, in dense arrays as Hugging Face has it: slow, and plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .scripted import Logits

HOPELESS = -1e9


class Found(NamedTuple):
    """New tokens with the end token, and the score."""

    tokens: list[int]
    score: float


def slow_beams(
    logits: Logits,
    source: tuple[int, ...],
    prompt: tuple[int, ...],
    *,
    beams: int,
    limit: int,
    ends: Sequence[int],
    length_penalty: float,
    early_stopping: Any,
    returned: int,
) -> list[Found]:
    kept = max(2, 1 + len(ends)) * beams
    running = [prompt] * beams
    running_scores = np.array([0.0] + [HOPELESS] * (beams - 1))
    done: list[tuple[int, ...]] = [()] * beams
    done_scores, is_done = np.full(beams, HOPELESS), np.zeros(beams, bool)
    improvable, length = True, 0
    while True:
        length += 1
        scores = np.stack([_log_softmax(logits(source, row)) for row in running])
        scores = (scores + running_scores[:, None]).ravel()
        best = np.argsort(-scores, kind="stable")[:kept]
        vocabulary = len(scores) // beams
        candidates = [(*running[i // vocabulary], int(i % vocabulary)) for i in best]
        best_scores = scores[best]
        hits = np.array([c[-1] in ends or length == limit for c in candidates])

        penalized = best_scores + hits * HOPELESS
        order = np.argsort(-penalized, kind="stable")[:beams]
        running, running_scores = [candidates[i] for i in order], penalized[order]

        finished = hits & (np.arange(kept) < beams)
        ranks = best_scores / length**length_penalty
        ranks += (is_done.all() and early_stopping is True) * HOPELESS
        ranks += (not improvable) * HOPELESS
        ranks += ~finished * HOPELESS
        all_scores = np.concatenate([done_scores, ranks])
        order = np.argsort(-all_scores, kind="stable")[:beams]
        done = [(done + candidates)[i] for i in order]
        done_scores = all_scores[order]
        is_done = np.concatenate([is_done, finished])[order]

        ideal = limit if early_stopping == "never" and length_penalty > 0 else length
        possible = running_scores[0] / ideal**length_penalty
        worst = np.where(is_done, done_scores.min(), HOPELESS)
        improvable = improvable and bool((possible > worst).any())
        if not improvable or (is_done.all() and early_stopping is True) or hits.all():
            return [
                Found(list(tokens[len(prompt) :]), float(score))
                for tokens, score in zip(done[:returned], done_scores[:returned], strict=True)
            ]


def _log_softmax(logits: Any) -> Any:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
