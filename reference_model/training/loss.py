"""The training loss: label-smoothed cross-entropy (Szegedy et al. 2016, section 7) of a projection
to the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_LOGITS = 2**21
"""Logits computed at once, 8 MB: what a processor's cache holds."""


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    label_smoothing: float = 0.0,
    total: int | None = None,
) -> Tensor:
    """The label-smoothed cross-entropy of hidden W^T + b: its sum over tokens, divided by `total`.

    What `torch.nn.functional.cross_entropy` gives for these logits. They are computed in chunks,
    each with its gradient at once, and never exist as a whole: with a large vocabulary, writing and
    reading them takes most of the time of a small model's training step, and of its memory.

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
