"""Models with random weights whose greedy output varies: it depends on the source and the prefix.

As initialized, a model tends to repeat one token. Norm gains of either sign keep the residual
connections from pointing back at the input token, and sharp attention makes keys matter.
"""

from __future__ import annotations

from typing import Any

import torch

from dragoman.reference_model import ModelConfig, Transformer


@torch.no_grad()
def random_transformer(
    config: ModelConfig, *, seed: int, feed_forward_scale: float = 1.0
) -> Transformer:
    """A reference model in evaluation mode. All gains and biases differ, so that none can stand in
    for another.

    Args:
        feed_forward_scale: factor of the feed-forward weights; 2 makes outputs vary more
    """
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            parameter.copy_(torch.randn_like(parameter))
        elif parameter.dim() == 1:
            parameter.copy_(torch.randn_like(parameter) * 0.1)
        elif name.endswith(("query.weight", "key.weight")):
            parameter.mul_(3.0)
        elif name.endswith(("inner.weight", "outer.weight")):
            parameter.mul_(feed_forward_scale)
    return model


@torch.no_grad()
def randomize_hugging_face(model: Any, *, seed: int = 3) -> Any:
    """A model of Hugging Face Transformers in evaluation mode, all its weights replaced."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_positions" in name and not parameter.requires_grad:
            continue  # a fixed sinusoidal table
        if parameter.dim() == 1:
            std = 1.0 if "norm" in name and name.endswith("weight") else 0.1
        else:
            sharpness = 3.4 if "q_proj" in name or "k_proj" in name else 1.1
            std = sharpness * parameter.shape[-1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.copy_(torch.randn(bias.shape, generator=generator) * 0.1)
    return model.eval()
