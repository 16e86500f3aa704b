"""Families of checkpoints: configuration, weights and tokenizers -> reference models.

Reading order: family, bart (the base of most), the other families, hugging_face; encoders;
state_dictionaries; ctranslate2.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.reference_model import Transformer

from ..formats.json_files import Values
from ..registry import MODEL_TYPES
from .encoders.family import EncoderFamily
from .family import Family

_REGISTERED: dict[str, Any] = {
    model_type: getattr(import_module(f"{__name__}.{row.module}"), row.family)
    for model_type, row in MODEL_TYPES.items()
}

FAMILIES: dict[str, Family] = {
    name: family for name, family in _REGISTERED.items() if isinstance(family, Family)
}
"""Families of Hugging Face's encoder-decoder and decoder-only models, by `model_type`."""

ENCODER_FAMILIES: dict[str, EncoderFamily] = {
    name: family for name, family in _REGISTERED.items() if isinstance(family, EncoderFamily)
}
"""Families of Hugging Face's encoder-only models, by `model_type`."""

StateDictReader = Callable[[Path, Values], Transformer]
"""Directory and fields of its `config.json` -> a model in evaluation mode, fp32."""

STATE_DICT_READERS: dict[str, StateDictReader] = {
    name: read
    for name, read in _REGISTERED.items()
    if MODEL_TYPES[name].format == "state dictionary"
}
"""Readers by the `model_type` that the owner of the weights writes into `config.json`."""
