"""The Transformer of the tutorial "pytorch-seq2seq" (Trevett 2021), and its many copies.

The model has post-norm, ReLU, learned positions, embeddings scaled by sqrt(d_model), and no tied
weights. The owner adds a `config.json` with what a state dictionary does not show:

    {"model_type": "pytorch-seq2seq", "num_heads": 8,
     "pad_token_id": 1, "start_token_id": 2, "end_token_id": 3}
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dragoman.reference_model import CheckpointError, ModelConfig, Transformer

from ...formats.json_files import Values
from ...formats.tensor_files import Weights, read_state_dict
from ..checkpoint import build, layer_count, measure
from ..family import renamed
from .torch_transformer import check_fields

PARTS: Mapping[str, str] = {
    "embedding.tokens": "tok_embedding",
    "embedding.positions.table": "pos_embedding.weight",
    "self_attention_residual.norm": "self_attn_layer_norm",
    "cross_attention_residual.norm": "enc_attn_layer_norm",
    "feed_forward_residual.norm": "ff_layer_norm",
    "cross_attention": "encoder_attention",
    "feed_forward.inner": "positionwise_feedforward.fc_1",
    "feed_forward.outer": "positionwise_feedforward.fc_2",
    ".query.": ".fc_q.",
    ".key.": ".fc_k.",
    ".value.": ".fc_v.",
    ".output.": ".fc_o.",
    "gain": "weight",
}
"""Parts of a parameter's name in `Transformer`, replaced in this order."""


def load_pytorch_seq2seq(directory: Path, values: Values) -> Transformer:
    """Read a model in evaluation mode, fp32."""
    check_fields(values, {})
    weights, origin = read_state_dict(directory, values.get("weights"), values.get("state_dict"))
    tables = [name for name in weights if name.endswith("encoder.tok_embedding.weight")]
    if len(tables) != 1:
        raise CheckpointError(
            origin, [f"expected one encoder.tok_embedding.weight, found {len(tables)}"]
        )
    prefix = tables[0].removesuffix("encoder.tok_embedding.weight")
    config = _config(values, weights, prefix, origin)
    make = partial(Transformer, config)
    return build(config, make, weights, partial(_weight_name, prefix=prefix), origin)


def _weight_name(name: str, *, prefix: str) -> str:
    if name.startswith("output."):
        return prefix + name.replace("output.", "decoder.fc_out.")
    return prefix + renamed(name, PARTS)


def _config(values: Values, weights: Weights, prefix: str, origin: Path) -> ModelConfig:
    (source, d_model), (target, _), (source_positions, _), (target_positions, _), (d_ff, _) = (
        measure(
            weights,
            {
                f"{prefix}encoder.tok_embedding.weight": 2,
                f"{prefix}decoder.tok_embedding.weight": 2,
                f"{prefix}encoder.pos_embedding.weight": 2,
                f"{prefix}decoder.pos_embedding.weight": 2,
                f"{prefix}encoder.layers.0.positionwise_feedforward.fc_1.weight": 2,
            },
            origin,
        )
    )
    return ModelConfig(
        source_vocab_size=source,
        target_vocab_size=target,
        encoder_layers=layer_count(weights, f"{prefix}encoder.layers."),
        decoder_layers=layer_count(weights, f"{prefix}decoder.layers."),
        d_model=d_model,
        num_heads=values["num_heads"],
        d_ff=d_ff,
        logits_bias=True,
        tie_target_output=False,
        positions="learned",
        max_source_positions=source_positions,
        max_target_positions=target_positions,
        pad_token_id=values["pad_token_id"],
        start_token_id=values["start_token_id"],
        end_token_id=values["end_token_id"],
    )
