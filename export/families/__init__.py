"""Checkpoints of other libraries -> reference models.

Reading order: family, bart (which most descend from), the other families, generation, hugging_face.
"""

from .bart import BART, MBART
from .family import Family
from .m2m_100 import M2M_100
from .marian import MARIAN
from .pegasus import PEGASUS
from .t5 import MT5, T5
from .whisper import WHISPER

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (MARIAN, BART, MBART, M2M_100, PEGASUS, T5, MT5, WHISPER)
}
"""By the `model_type` of `config.json`."""

__all__ = ["FAMILIES", "Family"]
