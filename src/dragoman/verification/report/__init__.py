"""Writes a report of bundles as one page, to sign a deployment off or to debug one."""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

__all__ = [
    "AttentionExample",
    "BundleReport",
    "Fact",
    "Licence",
    "ParityRow",
    "Percentiles",
    "Report",
    "Speed",
    "Timing",
    "Training",
    "Verdict",
]

if TYPE_CHECKING:
    from ..parity_rows import ParityRow
    from ..verdict import Verdict
    from .contents import (
        AttentionExample,
        BundleReport,
        Fact,
        Licence,
        Percentiles,
        Report,
        Speed,
        Timing,
        Training,
    )
else:
    __getattr__ = lazy_attributes(__name__, {"contents": __all__})
