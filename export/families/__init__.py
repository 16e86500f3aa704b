"""Checkpoints of other libraries -> reference models.

Reading order: family, bart (which most descend from), the other families, generation, hugging_face.
"""

from .bart import BART, MBART
from .family import Family
from .m2m_100 import M2M_100
from .marian import MARIAN
from .pegasus import PEGASUS
from .whisper import WHISPER

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (MARIAN, BART, MBART, M2M_100, PEGASUS, WHISPER)
}
"""By the `model_type` of `config.json`."""

__all__ = ["FAMILIES", "Family"]
