"""RoBERTa (Liu et al. 2019), and XLM-RoBERTa, which differs in its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dragoman.errors import DragomanError
from dragoman.reference_model.head_config import Task

from ...tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ...tokenizers.library import library_file
from ...tokenizers.multilingual import FAIRSEQ_MODEL
from ...tokenizers.reading import LIBRARY_FILE
from ..bart import TOKENIZER
from .bert import DEFAULTS, FIELDS, HEADS, PARTS
from .family import EncoderFamily, HeadNames

ROBERTA_HEADS: Mapping[Task, HeadNames] = {
    **HEADS,
    "sequence-classification": HeadNames(
        {"dense.linear": "classifier.dense", "output": "classifier.out_proj"}, activation="tanh"
    ),
    "masked-language-model": HeadNames(
        {
            "dense.linear": "lm_head.dense",
            "norm": "lm_head.layer_norm",
            "bias": "lm_head.bias",
            "weight": "lm_head.decoder.weight",
            "second_bias": "lm_head.decoder.bias",
        },
        activation="gelu",
    ),
}

ROBERTA = EncoderFamily(
    model_type="roberta",
    describes="RoBERTa",
    prefix="roberta.",
    class_prefix="Roberta",
    fields=FIELDS,
    activation="hidden_act",
    defaults={**DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    parts=PARTS,
    heads=ROBERTA_HEADS,
    tokenizers=(TOKENIZER,),
    mask="<mask>",
    positions_follow_padding=True,
)


def _pieces_alone(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    """Nothing: what an encoder reads has spans in its text, which SentencePiece does not give.

    Raises:
        DragomanError: there is a SentencePiece model.
    """
    path = checkpoint.directory / FAIRSEQ_MODEL
    if path.exists():
        raise DragomanError(
            f"{checkpoint.directory}: expected {LIBRARY_FILE}, found only {FAIRSEQ_MODEL}: "
            "transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...) makes it"
        )
    return None


XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    describes="XLM-RoBERTa",
    class_prefix="XLMRoberta",
    tokenizers=(TokenizerKind(("XLMRobertaTokenizer",), (library_file, _pieces_alone)),),
)
