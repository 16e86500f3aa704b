"""BERT (Devlin et al. 2018) and its relatives: ALBERT, DistilBERT, ELECTRA, RoBERTa, MPNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dragoman.errors import DragomanError
from dragoman.files.regular_files import VOCABULARY_BYTES, FileError, read_regular
from dragoman.reference_model.head_config import DenseActivation
from dragoman.settings.head import Task

from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind, classes
from ...tokenizers.files import check_has_tokens, check_ids
from ...tokenizers.kind import library_file, sentencepiece_file
from ...tokenizers.multilingual import FAIRSEQ_MODEL
from ...tokenizers.vocabulary import Vocabulary
from ..bart import TOKENIZER
from .family import EncoderFamily, HeadNames

# MiniLM and most models of sentence-transformers are stored as BERT. DistilBERT (Sanh et al. 2019)
# is BERT without token types, with other names of weights. ELECTRA (Clark et al. 2020) has other
# heads and may have narrow embeddings, which a linear map takes to hidden states. ALBERT (Lan et
# al. 2019) always has that map, and its places share the layers of a group. RoBERTa (Liu et al.
# 2019), CamemBERT and XLM-RoBERTa differ from BERT in heads and positions, and from each other in
# the tokenizer. MPNet (Song et al. 2020) is RoBERTa without token types, with biases by distance,
# as T5's.

VOCABULARY_FILE = "vocab.txt"


def word_piece(
    checkpoint: TokenizerCheckpoint,
    kind: classes.TokenizerClass = classes.BERT,
    named: tuple[str, str, str] = ("[UNK]", "[CLS]", "[SEP]"),
) -> TokenizerFiles | None:
    """Read WordPiece (Wu et al. 2016) from `vocab.txt`, one piece per line; None without it.

    `named` are the usual unknown token, and those at the ends of a text.
    """
    path = checkpoint.directory / VOCABULARY_FILE
    if not path.exists():
        return None
    try:
        pieces = read_regular(path, VOCABULARY_BYTES).decode().split("\n")
    except (FileError, UnicodeDecodeError) as error:
        raise DragomanError(f"{path}: expected a piece on each line: {error}") from error
    if pieces[-1] == "":
        pieces.pop()
    vocabulary = {piece.rstrip("\r"): token for token, piece in enumerate(pieces)}
    check_ids(path, vocabulary, checkpoint.vocab_size)
    unknown, begin, end = map(checkpoint.special, ("unk", "cls", "sep"), named)
    check_has_tokens(path, vocabulary, unknown, begin, end)
    tokenizer = checkpoint.from_vocabulary(kind, Vocabulary(vocabulary))
    return TokenizerFiles(tokenizer, tokenizer, cleans_up=checkpoint.cleans_up(tokenizer))


WORD_PIECE = TokenizerKind(
    ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), (library_file, word_piece)
)


BERT_FIELDS: Mapping[str, str] = {
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

BERT_DEFAULTS: Mapping[str, Any] = {
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

EMBEDDING_PARTS: Mapping[str, str] = {
    "encoder.embedding.tokens": "embeddings.word_embeddings",
    "encoder.embedding.positions.table": "embeddings.position_embeddings.weight",
    "encoder.embedding.types": "embeddings.token_type_embeddings",
    "encoder.embedding.norm": "embeddings.LayerNorm",
}
BERT_PARTS: Mapping[str, str] = {
    **EMBEDDING_PARTS,
    "encoder.layers": "encoder.layer",
    "self_attention_residual.norm": "attention.output.LayerNorm",
    "self_attention.output": "attention.output.dense",
    "self_attention": "attention.self",
    "feed_forward_residual.norm": "output.LayerNorm",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
    ".gain": ".weight",
}


def _classification(
    dense: str, output: str, activation: DenseActivation
) -> Mapping[Task, HeadNames]:
    return {
        "sequence-classification": HeadNames(
            {"dense.linear": dense, "output": output}, activation=activation
        )
    }


def _masked(*names: str, activation: DenseActivation | None = None) -> Mapping[Task, HeadNames]:
    """Return the head of a masked language model, which may have a second bias."""
    parts = ("dense.linear", "norm", "bias", "weight", "second_bias")
    named = dict(zip(parts, names, strict=False))
    return {"masked-language-model": HeadNames(named, activation=activation)}


BERT_HEADS: Mapping[Task, HeadNames] = {
    **_classification("pooler.dense", "classifier", "tanh"),
    "token-classification": HeadNames({"output": "classifier"}),
    "question-answering": HeadNames({"output": "qa_outputs"}),
    **_masked(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    ),
}

BERT = EncoderFamily(
    prefix="bert.",
    class_prefix="Bert",
    fields=BERT_FIELDS,
    activation="hidden_act",
    defaults=BERT_DEFAULTS,
    parts=BERT_PARTS,
    heads=BERT_HEADS,
    tokenizers=(WORD_PIECE,),
    mask="[MASK]",
)


ELECTRA = replace(
    BERT,
    prefix="electra.",
    class_prefix="Electra",
    defaults={**BERT_DEFAULTS, "hidden_size": 256, "num_attention_heads": 4, "embedding_size": 128}
    | {"intermediate_size": 1024},
    parts={"encoder.projection": "embeddings_project", **BERT_PARTS},
    heads={
        **BERT_HEADS,
        **_classification("classifier.dense", "classifier.out_proj", "gelu"),
        **_masked(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head.bias",
            "generator_lm_head.weight",
            activation="gelu",
        ),
    },
    projection="embeddings_project",
)


ALBERT = replace(
    BERT,
    prefix="albert.",
    class_prefix="Albert",
    defaults={
        **BERT_DEFAULTS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
    },
    parts={
        "encoder.projection": "encoder.embedding_hidden_mapping_in",
        **EMBEDDING_PARTS,
        "self_attention_residual.norm": "attention.LayerNorm",
        "self_attention.output": "attention.dense",
        "self_attention": "attention",
        "feed_forward_residual.norm": "full_layer_layer_norm",
        "feed_forward.inner": "ffn",
        "feed_forward.outer": "ffn_output",
        ".gain": ".weight",
    },
    heads={
        **BERT_HEADS,
        **_classification("pooler", "classifier", "tanh"),
        **_masked(
            "predictions.dense",
            "predictions.LayerNorm",
            "predictions.bias",
            "predictions.decoder.weight",
            "predictions.decoder.bias",
        ),
    },
    tokenizers=(
        TokenizerKind(
            ("AlbertTokenizer",),
            (
                library_file,
                partial(sentencepiece_file, file_name="spiece.model", kind=classes.ALBERT),
            ),
        ),
    ),
    projection="encoder.embedding_hidden_mapping_in",
    shares_layers=True,
)


DISTILBERT_FIELDS: Mapping[str, str] = {
    **BERT_FIELDS,
    "encoder_layers": "n_layers",
    "d_model": "dim",
    "num_heads": "n_heads",
    "d_ff": "hidden_dim",
    "dropout": "dropout",
}

DISTILBERT_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30522,
    "n_layers": 6,
    "dim": 768,
    "n_heads": 12,
    "hidden_dim": 3072,
    "dropout": 0.1,
    "activation": "gelu",
    "layer_norm_eps": 1e-12,  # a constant of the implementation, not a field
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}

DISTILBERT_PARTS: Mapping[str, str] = {
    **EMBEDDING_PARTS,
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

DISTILBERT = replace(
    BERT,
    prefix="distilbert.",
    class_prefix="DistilBert",
    fields=DISTILBERT_FIELDS,
    activation="activation",
    defaults=DISTILBERT_DEFAULTS,
    parts=DISTILBERT_PARTS,
    heads={
        **BERT_HEADS,
        **_classification("pre_classifier", "classifier", "relu"),
        **_masked(
            "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector.weight"
        ),
    },
)


ROBERTA = replace(
    BERT,
    prefix="roberta.",
    class_prefix="Roberta",
    defaults={**BERT_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    heads={
        **BERT_HEADS,
        **_classification("classifier.dense", "classifier.out_proj", "tanh"),
        **_masked(
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head.bias",
            "lm_head.decoder.weight",
            "lm_head.decoder.bias",
            activation="gelu",
        ),
    },
    tokenizers=(TOKENIZER,),
    mask="<mask>",
    positions_follow_padding=True,
)


XLM_ROBERTA = replace(
    ROBERTA,
    class_prefix="XLMRoberta",
    tokenizers=(
        TokenizerKind(
            ("XLMRobertaTokenizer",),
            (
                library_file,
                partial(sentencepiece_file, file_name=FAIRSEQ_MODEL, kind=classes.XLM_ROBERTA),
            ),
        ),
    ),
)


CAMEMBERT = replace(
    ROBERTA,
    class_prefix="Camembert",
    tokenizers=(TokenizerKind(("CamembertTokenizer",), (library_file,)),),
)


MPNET = replace(
    ROBERTA,
    prefix="mpnet.",
    class_prefix="MPNet",
    defaults={
        **BERT_DEFAULTS,
        "vocab_size": 30527,
        "relative_attention_num_buckets": 32,
        "type_vocab_size": 0,
        "pad_token_id": 1,
    },
    parts={
        "encoder.relative_positions.table": "encoder.relative_attention_bias.weight",
        "self_attention_residual.norm": "attention.LayerNorm",
        **{f"self_attention.{n}": f"attention.attn.{n[0]}" for n in ("query", "key", "value")},
        "self_attention.output": "attention.attn.o",
        **{name: part for name, part in BERT_PARTS.items() if "self_attention" not in name},
    },
    tokenizers=(
        TokenizerKind(
            ("MPNetTokenizer",),
            (library_file, partial(word_piece, kind=classes.MPNET, named=("[UNK]", "<s>", "</s>"))),
        ),
    ),
    positions="learned_and_relative",
    constants={"pad_token_id": 1, "relative_attention_num_buckets": 32},
)
