"""The oracle with its numbers rounded to nearest: what a precision costs a model by itself.

How far rounding moves the distributions of a model depends on the model, by a factor of a hundred
and more among trained ones. So a bundle is not held to a distance that all models share, but to
that of its own model, rounded in the plainest way: each weight to the nearest integer, without the
compensation of errors that a bundle's weights get.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dragoman.optimize.precision.weights import Scheme
from dragoman.optimize.recipe import Schemes
from dragoman.optimize.targets import find_target
from dragoman.reference_model import ReferenceModel
from dragoman.reference_model.heads import MaskedLanguageModelHead
from dragoman.reference_model.stacks import Output
from dragoman.runtime.format.manifest import Manifest, Precision

CLIPPED_AT = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
"""In 4 bits the largest weight of a scale may be clipped to these shares of it, if that rounds the
others better."""

M = TypeVar("M", bound=ReferenceModel)

HALVES: dict[Precision, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


def rounded_oracle(oracle: M, manifest: Manifest) -> M:
    """A copy of the oracle that computes in the precision of a bundle.

    16 bits: all weights, and what every module returns. int8 and int4: the weights of all products
    and tables, and the inputs of products if the target rounds them; products that the target
    leaves in fp32 are rounded, too, but for those that the user wanted to be kept.
    """
    rounded, recipe = copy.deepcopy(oracle), find_target(manifest.target).recipe
    half = HALVES.get(manifest.precision)
    if half is None:
        width = oracle.config.d_model
        schemes = recipe.schemes(manifest.precision, manifest.graphs, {width})
        _round_products(rounded, schemes, manifest.keep_fp32)
        half = HALVES.get(recipe.half_activations) if recipe.half_activations else None
    if half is not None:
        _round_to_half(rounded, half)
    return rounded


def _round_products(model: ReferenceModel, schemes: Schemes, kept: Collection[str]) -> None:
    tied = model.config.tie_target_output
    kinds = nn.Linear | nn.Embedding | Output | MaskedLanguageModelHead
    # A module may have several names, of which the manifest has the one that its weight has.
    named = dict(model.named_modules(remove_duplicate=False))
    exempt = {id(module) for name, module in named.items() if name in kept}
    for name, module in model.named_modules():
        if not isinstance(module, kinds) or id(module) in exempt:
            continue
        scheme = schemes.embedding
        if isinstance(module, nn.Linear) or (isinstance(module, Output) and not tied):
            scheme = schemes.products[_graph(name, schemes)]
        weight = to_nearest(module.weight.detach(), scheme.bits, scheme.block)
        module.weight = nn.Parameter(weight, requires_grad=False)
        if not isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(_rounds_inputs(scheme))


def _graph(name: str, schemes: Schemes) -> str:
    """The encoder's graph computes keys and values of cross-attention, too, and heads."""
    if "decoder" not in schemes.products:
        return "encoder"
    of_source = name.endswith(("cross_attention.key", "cross_attention.value"))
    return "encoder" if name.startswith("encoder.") or of_source else "decoder"


def to_nearest(weight: Tensor, bits: int, block: int | None) -> Tensor:
    """A weight [outputs, inputs] rounded to symmetric integers.

    Args:
        block: how many inputs share a scale; None: all
    """
    outputs, inputs = weight.shape
    size, limit = block or inputs, 2 ** (bits - 1) - 1
    blocks = nn.functional.pad(weight, (0, -inputs % size)).view(outputs, -1, size)
    largest = blocks.abs().amax(-1, keepdim=True)
    largest[largest == 0] = 1
    best, least = blocks, torch.full_like(largest, torch.inf)
    for clipped_at in CLIPPED_AT if bits == 4 else CLIPPED_AT[:1]:
        scale = largest * (clipped_at / limit)
        rounded = (blocks / scale).round().clamp(-limit, limit) * scale
        error = (rounded - blocks).square().sum(-1, keepdim=True)
        best, least = torch.where(error < least, rounded, best), torch.minimum(error, least)
    return best.view(outputs, -1)[:, :inputs].contiguous()


def _rounds_inputs(scheme: Scheme) -> Callable[[nn.Module, Any], tuple[Tensor]]:
    form = scheme.form(None)

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = arguments
        rows = form.round_inputs(x.reshape(-1, x.shape[-1]).numpy())
        return (torch.from_numpy(rows).view(x.shape),)

    return hook


def _round_to_half(model: nn.Module, dtype: torch.dtype) -> None:
    def narrow(x: Tensor) -> Tensor:
        """What exceeds the range stays as it is, as bundles keep it in fp32."""
        rounded: Tensor = x.to(dtype).to(x.dtype)
        return torch.where(rounded.isfinite(), rounded, x)

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        return narrow(output) if isinstance(output, Tensor) else output

    for parameter in model.parameters():
        parameter.data = narrow(parameter.data)
    for module in model.modules():
        module.register_forward_hook(hook)
