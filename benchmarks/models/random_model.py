"""Random weights whose greedy output varies with the source and does not end early."""

from __future__ import annotations

import torch

from dragoman.reference_model import ModelConfig, Transformer


def random_model(config: ModelConfig, *, seed: int, sharpness: float = 4.0) -> Transformer:
    """A model in evaluation mode, the same for the same seed.

    Args:
        sharpness: of attention, which grows with its square. Rounding errors grow with it too, from
            layer to layer: deep models need less.

    It never chooses its end token: the logit of that is always 0 (unless there is a logits bias),
    which is far below the largest logit of any realistic vocabulary.
    """
    torch.manual_seed(seed)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # With PyTorch's initialization a model with tied embeddings repeats one token: the
            # residual stream keeps pointing at the input token. Gains of both signs prevent that;
            # sharper attention makes the output depend on the inputs.
            if name.endswith("gain"):
                parameter.normal_()
            elif "query" in name or "key" in name:
                parameter.mul_(sharpness)
            elif parameter.dim() == 2 and "embedding" not in name:
                parameter.mul_(0.5)
        model.output.weight[config.end_token_id] = 0
    return model
