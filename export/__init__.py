"""Checkpoints -> neutral ONNX graphs, in a bundle.

Reading order: checkpoints, formats, families, tokenizers; then graphs, exporter, simplify,
graph_check, neutral_bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph_check import ContractError
    from .neutral_bundle import export_bundle
    from .tokenizers import TokenizerFiles

_MODULES = {
    "ContractError": "graph_check",
    "TokenizerFiles": "tokenizers",
    "export_bundle": "neutral_bundle",
}


def __getattr__(name: str) -> Any:
    """Import on first use: PyTorch takes seconds, and a wrong path is refused before that."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


__all__ = ["ContractError", "TokenizerFiles", "export_bundle"]
