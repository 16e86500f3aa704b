"""M2M100 (Fan et al. 2020) and NLLB (NLLB Team 2022)."""

from ..family import Family
from .model import complete, computed, config, weight_name
from .tokenizers import TOKENIZERS

M2M_100 = Family(
    "m2m_100",
    "M2M100, NLLB",
    config,
    weight_name,
    complete,
    TOKENIZERS,
    computed=computed,
    positions_grow=True,
)

__all__ = ["M2M_100"]
