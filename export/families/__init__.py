"""Families of checkpoints: configuration, weights and tokenizers -> reference models.

`export.registry` names the families. Reading order: family (the record), bart (from which most
descend), the other families, hugging_face (which reads a directory of any of them); encoders;
state_dictionaries; ctranslate2.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.reference_model import Transformer

from ..formats.json_files import Values
from ..registry import MODEL_TYPES, Registration
from .encoders.family import EncoderFamily
from .family import Family


def _registered(row: Registration) -> Any:
    return getattr(import_module(f"{__name__}.{row.module}"), row.family)


_REGISTERED = {model_type: _registered(row) for model_type, row in MODEL_TYPES.items()}

FAMILIES: dict[str, Family] = {
    name: family for name, family in _REGISTERED.items() if isinstance(family, Family)
}
"""Families of encoder-decoder and decoder-only models at Hugging Face, by `model_type`."""

ENCODER_FAMILIES: dict[str, EncoderFamily] = {
    name: family for name, family in _REGISTERED.items() if isinstance(family, EncoderFamily)
}
"""Families of encoder-only models at Hugging Face, by `model_type`."""

StateDictReader = Callable[[Path, Values], Transformer]
"""Directory and fields of its `config.json` -> a model in evaluation mode, fp32."""

STATE_DICT_READERS: dict[str, StateDictReader] = {
    name: read
    for name, read in _REGISTERED.items()
    if MODEL_TYPES[name].format == "state dictionary"
}
"""By the `model_type` that the owner of the weights writes into `config.json`."""
