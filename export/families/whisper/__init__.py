"""Whisper (Radford et al. 2022) and Distil-Whisper."""

from ..family import Family
from .model import complete, config, weight_name
from .settings import generation
from .tokenizers import TOKENIZER

WHISPER = Family(
    "whisper",
    "Whisper, Distil-Whisper",
    config,
    weight_name,
    complete,
    (TOKENIZER,),
    generation=generation,
)

__all__ = ["WHISPER"]
