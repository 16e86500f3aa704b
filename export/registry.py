"""The registry of families: one row for each supported `model_type` of `config.json`.

It holds names only, so that a wrong checkpoint is refused before PyTorch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

FormatName = Literal[
    "Dragoman", "Hugging Face", "sentence-transformers", "CTranslate2", "Marian", "state dictionary"
]


class Registration(NamedTuple):
    """A row of the registry."""

    format: FormatName
    """The layout of the family's checkpoint directories."""
    module: str
    """The module of the family in `export.families`."""
    family: str
    """A `Family` or an `EncoderFamily` of that module, or the function that reads a state
    dictionary."""


MODEL_TYPES: Mapping[str, Registration] = {
    "marian": Registration("Hugging Face", "marian", "MARIAN"),
    "bart": Registration("Hugging Face", "bart", "BART"),
    "mbart": Registration("Hugging Face", "bart", "MBART"),
    "m2m_100": Registration("Hugging Face", "m2m_100", "M2M_100"),
    "pegasus": Registration("Hugging Face", "marian", "PEGASUS"),
    "t5": Registration("Hugging Face", "t5", "T5"),
    "mt5": Registration("Hugging Face", "t5", "MT5"),
    "whisper": Registration("Hugging Face", "whisper", "WHISPER"),
    "gpt2": Registration("Hugging Face", "gpt2", "GPT2"),
    "bert": Registration("Hugging Face", "encoders.bert", "BERT"),
    "roberta": Registration("Hugging Face", "encoders.bert", "ROBERTA"),
    "xlm-roberta": Registration("Hugging Face", "encoders.bert", "XLM_ROBERTA"),
    "camembert": Registration("Hugging Face", "encoders.bert", "CAMEMBERT"),
    "electra": Registration("Hugging Face", "encoders.bert", "ELECTRA"),
    "mpnet": Registration("Hugging Face", "encoders.bert", "MPNET"),
    "albert": Registration("Hugging Face", "encoders.bert", "ALBERT"),
    "distilbert": Registration("Hugging Face", "encoders.bert", "DISTILBERT"),
    "torch.nn.Transformer": Registration(
        "state dictionary", "state_dictionaries", "load_torch_transformer"
    ),
    "pytorch-seq2seq": Registration(
        "state dictionary", "state_dictionaries", "load_pytorch_seq2seq"
    ),
}
