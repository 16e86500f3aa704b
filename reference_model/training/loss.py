"""The training objective: batches of pairs, teacher forcing, and the loss.

Batches have pairs of similar length ("Attention Is All You Need", section 5.1). The loss is
label-smoothed cross-entropy (Szegedy et al. 2016, section 7).
"""

from __future__ import annotations

import hashlib
import random
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..models import AutoregressiveModel, LanguageModel, pad
from ..stacks import NoMemory

Pair = tuple[Sequence[int], Sequence[int]]
"""Source and target token ids, each ending with its end token."""


class TokenPairs:
    """Pairs in one flat array, at two bytes a token for vocabularies of up to 65,536 tokens.

    Attributes:
        tokens: the ids of all pairs, a source and then its target; uint16, or int32 for more tokens
        offsets: int64 [2 N + 1], where the sources and targets begin in `tokens`
        corpora: the number of pairs of each corpus, in their order, and how often they occur in an
            epoch
    """

    def __init__(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[Any],
        corpora: Sequence[tuple[int, float]] | None = None,
    ) -> None:
        self.tokens = tokens
        self.offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths.ravel(), out=self.offsets[1:])
        self.corpora = [(len(self), 1.0)] if corpora is None else list(corpora)

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> TokenPairs:
        """Copy pairs, of which no token is larger than a 32-bit integer."""
        if isinstance(pairs, TokenPairs):
            return pairs
        tokens, lengths = array("i"), array("i")
        for pair in pairs:
            for side in pair:
                tokens.extend(side)
                lengths.append(len(side))
        flat = np.frombuffer(tokens, np.int32)
        dtype = token_dtype(int(flat.max(initial=0)) + 1)
        return cls(flat.astype(dtype), np.frombuffer(lengths, np.int32))

    def __len__(self) -> int:
        return len(self.offsets) // 2

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, middle, end = self.offsets[2 * index : 2 * index + 3]
        return self.tokens[first:middle].tolist(), self.tokens[middle:end].tolist()

    def __iter__(self) -> Iterator[Pair]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the pairs."""
        digest = hashlib.sha256(self.tokens.dtype.name.encode())
        digest.update(self.offsets.data)
        digest.update(self.tokens.data)
        return digest.hexdigest()

    def lengths(self) -> NDArray[np.int32]:
        """Return the numbers of tokens [N, 2] of the sources and the targets."""
        first, end = self.offsets[:-1], self.offsets[1:]
        return np.subtract(end, first, dtype=np.int32, casting="unsafe").reshape(-1, 2)

    def parts(self) -> int:
        """Return the number of parts of an epoch: one, unless pairs occur many times."""
        occurrences = sum(int(weight * count) for count, weight in self.corpora)
        return max(1, occurrences // max(len(self), SMALLEST_PART))

    def of_epoch(self, seed: int, part: int = 0) -> array[int]:
        """Return the indices of the pairs of a part of an epoch, corpus by corpus.

        The pairs of a corpus of weight 2.25 occur twice, and a quarter of them, drawn by the seed,
        once more. Each part has its share of each corpus.
        """
        chosen, first, parts = array("i"), 0, self.parts()
        for number, (count, weight) in enumerate(self.corpora):
            repeated = drawn = array("i", range(first, first + count))
            whole, more = int(weight) * count, round(weight % 1 * count)
            if more or parts > 1:
                drawn = drawn[:]
                random.Random(f"{seed}, corpus {number}").shuffle(drawn)
                repeated = repeated if parts == 1 else drawn
            begin, end = ((whole + more) * n // parts for n in (part, part + 1))
            for indices, places in (
                (repeated, np.arange(begin, min(end, whole))),
                (drawn, np.arange(max(begin, whole), end)),
            ):
                if len(places):
                    chosen.frombytes(np.take(indices, places, mode="wrap").tobytes())
            first += count
        return chosen


SMALLEST_PART = 1_000_000
"""The least indices of a part of an epoch that has several."""


def token_dtype(vocabulary: int) -> type[np.uint16 | np.int32]:
    """Return the type of a token of a vocabulary of so many tokens."""
    return np.uint16 if vocabulary <= 1 << 16 else np.int32


class TokenBatches(Sequence[NDArray[np.int32]]):
    """Batches of at most `batch_tokens` tokens per side, padding included.

    Ties and the order of the batches are random. They depend on the seed only, so that an
    interrupted epoch can be resumed. One part of an epoch is in memory at a time.

    Items are indices into `pairs`, each exactly once, or as often as its corpus states. A pair
    longer than the limit forms its own batch.
    """

    def __init__(self, pairs: Iterable[Pair], batch_tokens: int, *, seed: int) -> None:
        self._pairs, self._batch_tokens, self._seed = TokenPairs.of(pairs), batch_tokens, seed
        self._part, self._batches = -1, list[NDArray[np.int32]]()
        # The first part comes last, and stays.
        counts = [len(self._of(part)) for part in reversed(range(self._pairs.parts()))]
        self._ends = list(accumulate(reversed(counts)))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> NDArray[np.int32]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.int32]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.int32] | list[NDArray[np.int32]]:
        if isinstance(index, slice):
            return [self[n] for n in range(len(self))[index]]
        index = range(len(self))[index]
        part = bisect_right(self._ends, index)
        return self._of(part)[index - self._ends[part]]

    def _of(self, part: int) -> list[NDArray[np.int32]]:
        if part != self._part:
            self._batches = []  # before others are made
            self._batches = _batches_of(self._pairs, self._batch_tokens, self._seed, part)
            self._part = part
        return self._batches


def _batches_of(
    pairs: TokenPairs, batch_tokens: int, seed: int, part: int
) -> list[NDArray[np.int32]]:
    generator = random.Random(f"{seed}, part {part}" if part else seed)
    shuffled = pairs.of_epoch(seed, part)
    generator.shuffle(shuffled)
    order = np.frombuffer(shuffled, np.int32)
    lengths = pairs.lengths()
    source, target = lengths[order].T.astype(np.int64)
    order = order[np.argsort((source << 32) + target, kind="stable")]
    widths = lengths.max(axis=1)[order].astype(np.int64)
    bounds = [0]
    while bounds[-1] < len(order):
        first = bounds[-1]
        # A batch of more pairs would have too many tokens even if its first pair was the widest.
        most = batch_tokens // widths[first] + 1 if widths[first] else len(order)
        widest = np.maximum.accumulate(widths[first : first + most])[1:]
        too_many = np.flatnonzero(widest * np.arange(2, len(widest) + 2) > batch_tokens)
        bounds.append(first + 1 + int(too_many[0] if len(too_many) else len(widest)))
    batches = [order[first:end] for first, end in pairwise(bounds)]
    generator.shuffle(batches)
    return batches


SCORING_TOKENS = 4096
"""Tokens per batch of `negative_log_likelihood`."""


def hidden_states(model: AutoregressiveModel, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Compute the decoder's hidden states that predict the target tokens of a batch.

    Returns:
        hidden states [N, D], and the tokens [N] that they predict, without padding
    """
    config = model.config
    device = model.output.weight.device
    target, target_mask = (x.to(device) for x in pad([p[1] for p in pairs], config.pad_token_id))
    begin = torch.full((len(pairs), 1), config.start_token_id, device=device)
    decoder_input = torch.cat([begin, target[:, :-1]], dim=1)
    position = torch.zeros(len(pairs), dtype=torch.long, device=device)
    if isinstance(model, LanguageModel):
        hidden = model.decode(decoder_input, position, NoMemory())
    else:
        source, mask = (x.to(device) for x in pad([p[0] for p in pairs], config.pad_token_id))
        cross = model.encode(source, mask)
        hidden = model.decoder(decoder_input, position, mask, cross, NoMemory())
    return hidden[target_mask], target[target_mask]


def predictions(model: AutoregressiveModel, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Compute the logits [N, V] of all target tokens of a batch; return the tokens [N], too."""
    hidden, tokens = hidden_states(model, pairs)
    return model.output(hidden), tokens


@torch.inference_mode()
def negative_log_likelihood(model: AutoregressiveModel, pairs: Iterable[Pair]) -> float:
    """Sum the cross-entropy of all target tokens, end tokens included, in nats."""
    nats, pairs = 0.0, TokenPairs.of(pairs)
    for batch in TokenBatches(pairs, SCORING_TOKENS, seed=0):
        logits, tokens = predictions(model, [pairs[i] for i in batch])
        nats += F.cross_entropy(logits.double(), tokens, reduction="sum").item()
    return nats


CHUNK_LOGITS = 2**21
"""Logits computed at once: 8 MB, which fits a CPU cache."""


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    label_smoothing: float = 0.0,
    total: float | None = None,
) -> Tensor:
    """Compute the label-smoothed cross-entropy of hidden W^T + b, summed and divided by `total`.

    The logits are computed in chunks, each together with its gradient. With a large vocabulary,
    storing them all takes most of the time and memory of a small model's training step. Under
    autocast the products are computed in its precision, the softmax in fp32.

    Args:
        hidden: [N, D]
        weight: [V, D]
        bias: [V], or None
        tokens: int64 [N]
        total: the number of tokens of a step, divided by the scale of the loss; None: N

    Returns:
        a scalar, nats per token
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    loss: Tensor = _ProjectedCrossEntropy.apply(
        hidden, weight, bias, tokens, label_smoothing, total or len(tokens), dtype
    )
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        smoothing: float,
        total: float,
        dtype: torch.dtype,
    ) -> Tensor:
        vocabulary = weight.shape[0]
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(weight)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        matrix = weight.to(dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        rows = max(1, CHUNK_LOGITS // vocabulary)
        for first in range(0, len(tokens), rows):
            chunk, target = hidden[first : first + rows].to(dtype), tokens[first : first + rows]
            logits = F.linear(chunk, matrix).float()
            if bias is not None:
                logits += bias
            normalizer = logits.logsumexp(dim=-1)
            likely = logits.gather(1, target[:, None]).squeeze(1)
            loss += (normalizer - (1 - smoothing) * likely - smoothing * logits.mean(dim=-1)).sum()
            # softmax - smoothed target, in place of the logits
            grad = logits.sub_(normalizer[:, None]).exp_().sub_(smoothing / vocabulary)
            grad[torch.arange(len(target)), target] -= 1 - smoothing
            grad /= total
            if bias_grad is not None:
                bias_grad += grad.sum(dim=0)
            narrow = grad.to(dtype)
            hidden_grad[first : first + rows] = narrow @ matrix
            weight_grad += narrow.T @ chunk
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return loss / total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        hidden, weight, bias = ctx.saved_tensors
        return hidden * grad, weight * grad, None if bias is None else bias * grad, *[None] * 4
