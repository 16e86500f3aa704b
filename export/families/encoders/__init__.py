"""Families of encoders alone: BERT, RoBERTa, DistilBERT and what is stored as one of them.

Reading order: family (the record), bert and the others, heads (what stands on the encoder), loading
(a directory of Hugging Face), sentence_transformers (one of sentence-transformers).
"""

from .bert import BERT
from .distilbert import DISTILBERT
from .family import EncoderFamily
from .roberta import ROBERTA, XLM_ROBERTA

ENCODER_FAMILIES: dict[str, EncoderFamily] = {
    family.model_type: family for family in (BERT, ROBERTA, XLM_ROBERTA, DISTILBERT)
}
"""By the `model_type` of Hugging Face's `config.json`. `formats.detection` has the same names."""

__all__ = ["ENCODER_FAMILIES", "EncoderFamily"]
