"""Random weights whose greedy output is worth measuring: it varies, and it does not end."""

from __future__ import annotations

import torch

from dragoman.reference_model import ModelConfig, Transformer


def random_model(config: ModelConfig, *, seed: int) -> Transformer:
    """A model in evaluation mode that never chooses its end token: that one's logit is 0, which is
    far from the largest of a vocabulary of any size worth measuring."""
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # As initialized, a tied model repeats one token. Gains of either sign keep the residual
            # from pointing back at the input token; sharp attention makes inputs matter.
            if name.endswith("gain"):
                parameter.normal_()
            elif "query" in name or "key" in name:
                parameter.mul_(4)
            elif parameter.dim() == 2 and "embedding" not in name:
                parameter.mul_(0.5)
        model.output.weight[config.end_token_id] = 0
    return model
