"""Settings of models and options of calls: dataclasses with checks.

They are independent of tensors and file formats.
"""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .generation import GenerationKeywords, GenerationOptions
    from .generation_settings import GenerationSettings, Part
    from .head import Head
    from .speech import AudioFeatures, LanguageOptions, SpeechTokens
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "generation": ("GenerationKeywords", "GenerationOptions"),
            "generation_settings": ("GenerationSettings", "Part"),
            "head": ("Head",),
            "speech": ("AudioFeatures", "LanguageOptions", "SpeechTokens"),
        },
    )

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
