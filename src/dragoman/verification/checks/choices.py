"""Which tokens a bundle chooses along given outputs, by its own scores in one pass.

Greedy decoding is deterministic and batch-invariant. So what a bundle generates follows from what
it scores: up to the first position of the oracle's output where its own choice is another token,
both outputs are identical; there it must generate its own choice; and everything that it generates
must be its own choice along its own output. What rounds differently in one pass and in steps is
known to be small, see `ROUNDING`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.reference_model import AutoregressiveModel, LanguageModel
from dragoman.reference_model.decoding import most_new_tokens
from dragoman.runtime import Model
from dragoman.runtime.decoding.batching import Encodable, as_batch, pad
from dragoman.runtime.decoding.options import DEFAULT_BATCH_SIZE
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.scoring.batches import forcing_batches

from ..forced import ForcedBatch
from ..oracle import for_torch

Scores = NDArray[np.float32]

ROUNDING: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 0.01,
    "bf16": 0.03,
    "int8": 0.03,
    "int4": 0.03,
}
"""How far the scores of one pass may be from those of steps, as a share of max(1, the largest
logit): keys and values that steps read again are stored in the precision of the caches, in 8 bits
in int8 and int4 bundles for `cpu`. Right bundles (g2p-en, bible-en-es, verses-en, random T5, BART,
GPT-2) reach 3e-7 at fp32, 4e-4 in fp16, 0.003 in bf16 and int8, and 0.012 in int4."""


def rounding(precision: Precision, largest_logit: float) -> float:
    """The same in logits.

    Args:
        largest_logit: of the oracle, in absolute value
    """
    return ROUNDING[precision] * max(1.0, largest_logit)


@dataclass(frozen=True)
class Choices:
    """How the bundle's choices along the oracle's outputs compare with the oracle's.

    Attributes:
        sequences: outputs of the oracle that were scored
        changed: those with at least one other choice
        largest_error: of the difference between two logits, that of the oracle's choice and that of
            its runner-up or of the bundle's choice, at any position
    """

    sequences: int
    changed: int
    largest_error: float


class ChoiceMeter:
    """Measures how a bundle's choices along the oracle's outputs compare with the oracle's.

    Args:
        limit: the most new tokens
    """

    def __init__(self, oracle: AutoregressiveModel, limit: int) -> None:
        self._oracle, self._limit = oracle, limit
        self._sequences = self._changed = 0
        self._largest_error = 0.0

    def add(self, batch: ForcedBatch) -> None:
        """Compare the choices along a batch of the oracle's outputs."""
        for row in range(len(batch.read)):
            expected, found = self._scores(batch, row)
            self._sequences += 1
            if not len(expected):
                continue  # nothing but a forced token
            chosen, other = expected.argmax(-1), found.argmax(-1)
            self._changed += bool((chosen != other).any())
            self._largest_error = max(
                self._largest_error,
                _largest_error(expected, found, chosen, _runners_up(expected)),
                _largest_error(expected, found, chosen, other),
            )

    def result(self) -> Choices:
        return Choices(self._sequences, self._changed, self._largest_error)

    def _scores(self, batch: ForcedBatch, row: int) -> tuple[Scores, Scores]:
        """Of both, at every position where the oracle has chosen: [positions, V]."""
        oracle, where = self._oracle, np.flatnonzero(batch.chosen_mask[row])
        expected, found = (
            np.asarray(logits[row][where], np.float32) for logits in (batch.logits, batch.scored)
        )
        if oracle.generation.is_plain or not len(where):
            return expected, found
        forced = oracle.generation.forced_first_token_id is not None
        begin = int(where[0]) + 1 - forced
        read = batch.read[row][batch.read_mask[row]].tolist()
        without = isinstance(oracle, LanguageModel) or oracle.config.takes_audio
        source = [] if without else batch.source[row][batch.source_mask[row]].tolist()
        prompt, new = read[:begin], read[begin:]
        rules = Rules(oracle, source, prompt, most_new_tokens(oracle, prompt, self._limit))
        ruled = [rules.scores(logits, new, first=int(forced)) for logits in (expected, found)]
        return ruled[0], ruled[1]


@dataclass(frozen=True)
class Rules:
    """The checkpoint's generation settings at the steps of one output.

    Attributes:
        source: its tokens; none of audio
        prompt: start token and prompt
        limit: the most new tokens
    """

    oracle: AutoregressiveModel
    source: Sequence[int]
    prompt: list[int]
    limit: int

    @classmethod
    def of(cls, oracle: AutoregressiveModel, source: Encodable, limit: int) -> Rules:
        """The rules for the output of a source."""
        theirs = for_torch(source)
        prompt = oracle.prompt(theirs)
        tokens = [int(token) for token in oracle.source_tokens(theirs)]
        return cls(oracle, tokens, prompt, most_new_tokens(oracle, prompt, limit))

    def scores(self, logits: Scores, output: Sequence[int], first: int = 0) -> Scores:
        """Scores of the tokens of an output: minus infinity for those that the rules forbid.

        Args:
            logits: [tokens, V], or log-probabilities
            output: the tokens, of which each follows those before it; the last need not be there
            first: the number of the output's token that the first logits are for
        """
        generation = self.oracle.generation
        if generation.is_plain:
            return logits
        ends = generation.end_tokens(self.oracle.config.end_token_id)
        ruled = [
            generation.scores(
                torch.from_numpy(row),
                self.source,
                self.prompt,
                list(output[: first + step]),
                end_tokens=ends,
                limit=self.limit,
            ).numpy()
            for step, row in enumerate(logits)
        ]
        return np.stack(ruled) if ruled else logits

    def is_forced(self, step: int) -> bool:
        """Whether the settings force the token of a step, so that no score is asked."""
        generation = self.oracle.generation
        if step == 0 and generation.forced_first_token_id is not None:
            return True
        return step + 1 == self.limit and generation.forced_last_token_id is not None

    def has_ended(self, output: Sequence[int]) -> bool:
        """Whether decoding ends with an output: with an end token, or at the limit."""
        ends = self.oracle.generation.end_tokens(self.oracle.config.end_token_id)
        return len(output) >= self.limit or bool(output and output[-1] in ends)


def own_logits(
    model: Model,
    sources: Sequence[Encodable],
    prompts: Mapping[int, Sequence[int]],
    outputs: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, Scores]]:
    """The logits [tokens, V] that a bundle gives along outputs, in one pass for each.

    Args:
        prompts, outputs: by the index of a source; outputs of at least one token
    """
    spec, limits = model.manifest.model, model.backend.limits
    indices = list(outputs)
    reads = {i: [*prompts[i], *outputs[i][:-1]] for i in indices}
    rows = min(DEFAULT_BATCH_SIZE, limits.rows or DEFAULT_BATCH_SIZE)
    lengths = [(len(sources[i]), len(reads[i])) for i in indices]
    for batch in forcing_batches(spec, lengths, rows):
        members = [indices[n] for n in batch]
        encoded = [sources[i] if spec.has_encoder else [] for i in members]
        source, source_mask = as_batch(encoded, spec, limits.source_multiple)
        read, _ = pad([reads[i] for i in members], spec.pad_token_id)
        logits = model.backend.score(source, source_mask, read)
        for row, i in enumerate(members):
            first = len(prompts[i]) - 1
            yield i, np.asarray(logits[row, first : first + len(outputs[i])], np.float32)


def _runners_up(scores: Scores) -> NDArray[np.intp]:
    """The second best token of each position."""
    others = scores.copy()
    others[np.arange(len(others)), others.argmax(-1)] = -np.inf
    runners_up: NDArray[np.intp] = others.argmax(-1)
    return runners_up


def _largest_error(
    expected: Scores, found: Scores, one: NDArray[np.intp], other: NDArray[np.intp]
) -> float:
    """Of the difference between the scores of two tokens, at positions where both are allowed."""
    rows = np.arange(len(one))
    with np.errstate(invalid="ignore"):  # of forbidden tokens
        apart = [scores[rows, one] - scores[rows, other] for scores in (expected, found)]
        errors = np.abs(apart[0] - apart[1])
    return float(errors[np.isfinite(errors)].max(initial=0.0))
