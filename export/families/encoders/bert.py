"""BERT (Devlin et al. 2018); MiniLM and most models for sentences are stored as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model.head_config import Task

from .family import EncoderFamily, HeadNames
from .tokenizers import WORD_PIECE

FIELDS: Mapping[str, str] = {
    "source_vocab_size": "vocab_size",
    "encoder_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "max_source_positions": "max_position_embeddings",
    "pad_token_id": "pad_token_id",
}

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

PARTS: Mapping[str, str] = {
    "encoder.embedding.tokens": "embeddings.word_embeddings",
    "encoder.embedding.positions.table": "embeddings.position_embeddings.weight",
    "encoder.embedding.types": "embeddings.token_type_embeddings",
    "encoder.embedding.norm": "embeddings.LayerNorm",
    "encoder.layers": "encoder.layer",
    "self_attention_residual.norm": "attention.output.LayerNorm",
    "self_attention.output": "attention.output.dense",
    "self_attention": "attention.self",
    "feed_forward_residual.norm": "output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    ".gain": ".weight",
}

HEADS: Mapping[Task, HeadNames] = {
    "sequence-classification": HeadNames(
        {"dense.linear": "pooler.dense", "output": "classifier"}, activation="tanh"
    ),
    "token-classification": HeadNames({"output": "classifier"}),
    "question-answering": HeadNames({"output": "qa_outputs"}),
    "masked-language-model": HeadNames(
        {
            "dense.linear": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
            "weight": "cls.predictions.decoder.weight",
            "second_bias": "cls.predictions.decoder.bias",
        }
    ),
}

BERT = EncoderFamily(
    model_type="bert",
    describes="BERT, MiniLM and most models of sentence-transformers",
    prefix="bert.",
    class_prefix="Bert",
    fields=FIELDS,
    activation="hidden_act",
    defaults=DEFAULTS,
    parts=PARTS,
    heads=HEADS,
    tokenizers=(WORD_PIECE,),
    mask="[MASK]",
)
