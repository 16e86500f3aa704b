"""Checkpoints -> neutral ONNX graphs, in a bundle.

Reading order: registry (the supported families), locating, checkpoints, formats, families,
tokenizers; then graphs, exporter, neutral_bundle.
"""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .exporter import ContractError
    from .neutral_bundle import export_bundle
    from .tokenizers import TokenizerFiles
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "exporter": ("ContractError",),
            "neutral_bundle": ("export_bundle",),
            "tokenizers": ("TokenizerFiles",),
        },
    )

__all__ = ["ContractError", "TokenizerFiles", "export_bundle"]
