"""Families of checkpoints: configuration, weights and tokenizers -> reference models.

Reading order: family (the record), bart (from which most descend), the other families,
hugging_face (which reads a directory of any of them); state_dict_family, torch_transformer and
pytorch_seq2seq; ctranslate2.
"""

from .bart import BART
from .checkpoint import Checkpoint
from .family import Family
from .gpt2 import GPT2
from .m2m_100 import M2M_100
from .marian import MARIAN
from .mbart import MBART
from .pegasus import PEGASUS
from .pytorch_seq2seq import PYTORCH_SEQ2SEQ
from .state_dict_family import StateDictFamily
from .t5 import MT5, T5
from .torch_transformer import TORCH_TRANSFORMER
from .whisper import WHISPER

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (MARIAN, BART, MBART, M2M_100, PEGASUS, T5, MT5, WHISPER, GPT2)
}
"""By the `model_type` of Hugging Face's `config.json`. `formats.detection` has the same names."""

STATE_DICT_FAMILIES: dict[str, StateDictFamily] = {
    family.model_type: family for family in (TORCH_TRANSFORMER, PYTORCH_SEQ2SEQ)
}
"""By the `model_type` that the owner of the weights writes into `config.json`."""

__all__ = ["FAMILIES", "STATE_DICT_FAMILIES", "Checkpoint", "Family", "StateDictFamily"]
