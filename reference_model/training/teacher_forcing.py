"""What a model is trained to do: predict every token of a target from those before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..language_model import LanguageModel
from ..transformer import Transformer, pad
from .batching import Pair

Trainable = Transformer | LanguageModel


def predictions(model: Trainable, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """The logits [N, V] of all target tokens of a batch, and these tokens [N], without padding.

    Args:
        pairs: for a language model the sources are empty, and the targets are all there is
    """
    config = model.config
    target, target_mask = pad([pair[1] for pair in pairs], config.pad_token_id)
    start = torch.full((len(pairs), 1), config.start_token_id)
    given = torch.cat([start, target[:, :-1]], dim=1)
    if isinstance(model, LanguageModel):
        logits = model(given)
    else:
        source, source_mask = pad([pair[0] for pair in pairs], config.pad_token_id)
        logits = model(source, source_mask, given)
    return logits[target_mask], target[target_mask]
