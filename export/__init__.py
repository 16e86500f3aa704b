"""PyTorch -> neutral ONNX graphs, in a bundle."""

from .bundle import export_bundle
from .contract import ContractError
from .tokenizers import TokenizerFiles

__all__ = ["ContractError", "TokenizerFiles", "export_bundle"]
