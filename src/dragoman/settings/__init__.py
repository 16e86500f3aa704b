"""Settings of models and options of calls: dataclasses with checks.

They are independent of tensors and file formats.
"""

from .generation import GenerationKeywords, GenerationOptions
from .generation_settings import GenerationSettings, Part
from .head import Head
from .speech import AudioFeatures, LanguageOptions, SpeechTokens

__all__ = [
    "AudioFeatures",
    "GenerationKeywords",
    "GenerationOptions",
    "GenerationSettings",
    "Head",
    "LanguageOptions",
    "Part",
    "SpeechTokens",
]
