"""DistilBERT (Sanh et al. 2019): BERT without token types, under names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model.head_config import Task

from .family import EncoderFamily, HeadNames
from .tokenizers import WORD_PIECE

FIELDS: Mapping[str, str] = {
    "source_vocab_size": "vocab_size",
    "encoder_layers": "n_layers",
    "d_model": "dim",
    "num_heads": "n_heads",
    "d_ff": "hidden_dim",
    "dropout": "dropout",
    "norm_epsilon": "layer_norm_eps",
    "max_source_positions": "max_position_embeddings",
    "pad_token_id": "pad_token_id",
}

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "n_layers": 6,
    "dim": 768,
    "n_heads": 12,
    "hidden_dim": 3072,
    "dropout": 0.1,
    "activation": "gelu",
    "layer_norm_eps": 1e-12,  # not a field: the implementation has it
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}

PARTS: Mapping[str, str] = {
    "encoder.embedding.tokens": "embeddings.word_embeddings",
    "encoder.embedding.positions.table": "embeddings.position_embeddings.weight",
    "encoder.embedding.norm": "embeddings.LayerNorm",
    "encoder.layers": "transformer.layer",
    "self_attention_residual.norm": "sa_layer_norm",
    "feed_forward_residual.norm": "output_layer_norm",
    "self_attention.query": "attention.q_lin",
    "self_attention.key": "attention.k_lin",
    "self_attention.value": "attention.v_lin",
    "self_attention.output": "attention.out_lin",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    ".gain": ".weight",
}

HEADS: Mapping[Task, HeadNames] = {
    "sequence-classification": HeadNames(
        {"dense.linear": "pre_classifier", "output": "classifier"}, activation="relu"
    ),
    "token-classification": HeadNames({"output": "classifier"}),
    "question-answering": HeadNames({"output": "qa_outputs"}),
    "masked-language-model": HeadNames(
        {
            "dense.linear": "vocab_transform",
            "norm": "vocab_layer_norm",
            "bias": "vocab_projector.bias",
            "weight": "vocab_projector.weight",
        }
    ),
}

DISTILBERT = EncoderFamily(
    model_type="distilbert",
    describes="DistilBERT",
    prefix="distilbert.",
    class_prefix="DistilBert",
    fields=FIELDS,
    activation="activation",
    defaults=DEFAULTS,
    parts=PARTS,
    heads=HEADS,
    tokenizers=(WORD_PIECE,),
    mask="[MASK]",
)
