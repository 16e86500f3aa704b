"""The names of weights around and within `torch.nn.Transformer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dragoman.reference_model import CheckpointError

from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ..building import measure
from ..family import renamed

NAME_KEYS = (
    "transformer",
    "encoder",
    "decoder",
    "source_embedding",
    "target_embedding",
    "source_positions",
    "target_positions",
    "output",
)
"""The keys of the field `names`, whose values name modules or tensors."""

PARTS: Mapping[str, str] = {
    "self_attention_residual.norm": "norm1",
    "cross_attention_residual.norm": "norm2",
    "self_attention.output": "self_attn.out_proj",
    "cross_attention.output": "multihead_attn.out_proj",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
    "gain": "weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""
ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
ROLES = ("query", "key", "value")
"""The parts that `in_proj` stacks, in order; each is named `in_proj_weight (query)` once split."""


@dataclass(frozen=True)
class Names:
    """Names of weights in a state dictionary.

    Attributes:
        encoder, decoder: the prefix of the names of their weights
        source, target: the token embeddings
        source_positions, target_positions: None if positions are computed
        output: the projection to logits
    """

    encoder: str
    decoder: str
    source: str
    target: str
    source_positions: str | None
    target_positions: str | None
    output: str

    @property
    def output_bias(self) -> str:
        return self.output.removesuffix("weight") + "bias"


def resolve_names(values: Values, weights: Weights, origin: Path) -> Names:
    """The weights that the field `names` refers to.

    Raises:
        CheckpointError: a name is not in the state dictionary; lists the tensors that it could be.
    """
    stated = values.get("names", {})
    problems: list[str] = []
    encoder, decoder = (
        _stack_prefix(stated, stack, weights, problems) for stack in ("encoder", "decoder")
    )
    if problems:
        raise CheckpointError(origin, problems)
    first = f"{encoder}layers.0.self_attn.in_proj_weight"
    d_model = measure(weights, {first: 2}, origin)[0][1]

    def name_of(key: str, default: str | None = None) -> str:
        """The tensor of a name: the name itself, or the weight of that module."""
        name = stated.get(key)
        if name is None and default is not None:
            return default
        for candidate in (name, f"{name}.weight"):
            if candidate in weights:
                return str(candidate)
        candidates = [
            other
            for other, tensor in weights.items()
            if not other.startswith((encoder + "layers.", decoder + "layers."))
            and [*tensor.shape[-1:]] == [d_model]
            and sum(size != 1 for size in tensor.shape) == 2
        ]
        problems.append(
            f"names.{key}: expected a weight of shape [*, {d_model}], one of "
            f"{', '.join(candidates) or 'none'}; found {name!r}"
        )
        return ""

    source = name_of("source_embedding")
    target = name_of("target_embedding", source)
    stored = values["positions"] == "learned" or "source_positions" in stated
    source_positions = name_of("source_positions") if stored else None
    names = Names(
        encoder,
        decoder,
        source,
        target,
        source_positions,
        name_of("target_positions", source_positions) if stored else None,
        name_of("output", target),
    )
    if problems:
        raise CheckpointError(origin, problems)
    return names


def _stack_prefix(
    stated: Mapping[str, str], stack: str, weights: Weights, problems: list[str]
) -> str:
    """The prefix of the names of a stack's weights, as stated or as the names show it."""
    ending = f"layers.0.{'self_attn' if stack == 'encoder' else 'multihead_attn'}.in_proj_weight"
    candidates = [name.removesuffix(ending) for name in weights if name.endswith(ending)]
    if stack == "encoder":
        cross = "layers.0.multihead_attn.in_proj_weight"
        candidates = [prefix for prefix in candidates if prefix + cross not in weights]
    if stack in stated:
        prefix = f"{stated[stack]}."
    elif "transformer" in stated:
        prefix = f"{stated['transformer']}.{stack}.".removeprefix(".")
    elif len(candidates) == 1:
        return candidates[0]
    else:
        prefix = ""
    if prefix not in candidates:
        modules = ", ".join(candidate.removesuffix(".") for candidate in candidates) or "none"
        problems.append(
            f"names.{stack}: expected a module that has {ending}, one of {modules}; "
            f"found {prefix.removesuffix('.') or None!r}"
        )
    return prefix


def weight_name(name: str, names: Names) -> str:
    """The name that a state dictionary gives a parameter of `Transformer`."""
    outside_stacks = {
        "encoder.embedding.tokens.weight": names.source,
        "decoder.embedding.tokens.weight": names.target,
        "encoder.embedding.positions.table": names.source_positions,
        "decoder.embedding.positions.table": names.target_positions,
        "output.weight": names.output,
        "output.bias": names.output_bias,
    }
    if (theirs := outside_stacks.get(name)) is not None:
        return theirs
    stack, _, rest = name.partition(".")
    prefix = names.encoder if stack == "encoder" else names.decoder
    if stack == "encoder":
        rest = rest.replace("feed_forward_residual.norm", "norm2")
    rest = rest.replace("feed_forward_residual.norm", "norm3")
    for ours, attention in ATTENTIONS.items():
        for role in ROLES:
            for kind in ("weight", "bias"):
                part = f"{attention}.in_proj_{kind} ({role})"
                rest = rest.replace(f".{ours}.{role}.{kind}", f".{part}")
    return prefix + renamed(rest, PARTS)
