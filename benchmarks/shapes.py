"""Shapes of the models that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "activation": "swish"},
    "base": {"layers": 6, "d_model": 512, "heads": 8, "d_ff": 2048, "activation": "swish"},
    "big": {"layers": 6, "d_model": 1024, "heads": 16, "d_ff": 4096, "activation": "relu"},
}
"""Those of OPUS-MT models (base and big), and one small enough for tests."""
