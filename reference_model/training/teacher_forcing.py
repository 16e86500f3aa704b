"""What a model is trained to do: predict every token of a target from those before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..language_model import LanguageModel
from ..stacks import NoMemory
from ..transformer import Transformer, pad
from .batching import Pair, token_batches

Trainable = Transformer | LanguageModel

SCORING_TOKENS = 4096
"""Tokens per batch of `negative_log_likelihood`."""


def hidden_states(model: Trainable, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """The decoder's hidden states [N, D] before all target tokens of a batch, and these tokens [N],
    without padding.

    Args:
        pairs: for a language model the sources are empty, and the targets are all there is
    """
    config = model.config
    device = model.output.weight.device
    target, target_mask = (x.to(device) for x in pad([p[1] for p in pairs], config.pad_token_id))
    begin = torch.full((len(pairs), 1), config.start_token_id, device=device)
    given = torch.cat([begin, target[:, :-1]], dim=1)
    position = torch.zeros(len(pairs), dtype=torch.long, device=device)
    if isinstance(model, LanguageModel):
        hidden = model.decode(given, position, NoMemory())
    else:
        source, mask = (x.to(device) for x in pad([p[0] for p in pairs], config.pad_token_id))
        cross = model.encode(source, mask)
        hidden = model.decoder(given, position, mask, cross, NoMemory())
    return hidden[target_mask], target[target_mask]


def predictions(model: Trainable, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """The logits [N, V] of all target tokens of a batch, and these tokens [N], without padding."""
    hidden, tokens = hidden_states(model, pairs)
    return model.output(hidden), tokens


@torch.inference_mode()
def negative_log_likelihood(model: Trainable, pairs: Sequence[Pair]) -> float:
    """Of all target tokens together, end tokens included, in nats; without label smoothing."""
    nats = 0.0
    for batch in token_batches(pairs, SCORING_TOKENS, seed=0):
        logits, tokens = predictions(model, [pairs[i] for i in batch])
        nats += F.cross_entropy(logits.double(), tokens, reduction="sum").item()
    return nats
