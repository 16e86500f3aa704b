"""The training objective: batches of pairs, teacher forcing, and the loss.

Batches have pairs of similar length ("Attention Is All You Need", section 5.1). With teacher
forcing, a model predicts every token of a target from those before it. The loss is label-smoothed
cross-entropy (Szegedy et al. 2016, section 7) of a projection to the vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models import AutoregressiveModel, LanguageModel, pad
from ..stacks import NoMemory

Pair = tuple[Sequence[int], Sequence[int]]
"""Source and target token ids, each ending with its end token."""


def token_batches(pairs: Sequence[Pair], batch_tokens: int, *, seed: int) -> list[list[int]]:
    """Split pairs into batches of at most `batch_tokens` tokens per side, padding included.

    Pairs of similar length share a batch. Ties and the order of the batches are random. They depend
    on the seed only, so that an interrupted epoch can be resumed.

    Returns:
        indices into `pairs`, each exactly once; a pair longer than the limit forms its own batch
    """
    generator = random.Random(seed)
    order = list(range(len(pairs)))
    generator.shuffle(order)
    order.sort(key=lambda i: (len(pairs[i][0]), len(pairs[i][1])))
    batches: list[list[int]] = []
    batch: list[int] = []
    widest = 0
    for index in order:
        width = max(len(side) for side in pairs[index])
        if batch and max(widest, width) * (len(batch) + 1) > batch_tokens:
            batches.append(batch)
            batch, widest = [], 0
        batch.append(index)
        widest = max(widest, width)
    if batch:
        batches.append(batch)
    generator.shuffle(batches)
    return batches


SCORING_TOKENS = 4096
"""Tokens per batch of `negative_log_likelihood`."""


def hidden_states(model: AutoregressiveModel, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """Compute the decoder's hidden states that predict the target tokens of a batch.

    Args:
        pairs: tokens of sources (empty for a language model) and targets

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
def negative_log_likelihood(model: AutoregressiveModel, pairs: Sequence[Pair]) -> float:
    """Sum the cross-entropy of all target tokens, end tokens included, in nats."""
    nats = 0.0
    for batch in token_batches(pairs, SCORING_TOKENS, seed=0):
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
    total: int | None = None,
) -> Tensor:
    """Compute the label-smoothed cross-entropy of hidden W^T + b, summed and divided by `total`.

    The result equals `torch.nn.functional.cross_entropy` of these logits. They are computed in
    chunks, each together with its gradient. With a large vocabulary, storing all logits takes most
    of the time and memory of a small model's training step.

    Under autocast the products are computed in its precision, the softmax in fp32.

    Args:
        hidden: [N, D]
        weight: [V, D]
        bias: [V], or None
        tokens: int64 [N]
        total: the number of tokens in a step's batches, if gradients accumulate; None: N

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
        total: int,
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
