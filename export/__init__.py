"""PyTorch -> neutral ONNX graphs, in a bundle."""

from .bundle import TokenizerFiles, export_bundle, log_mel_of
from .contract import ContractError

__all__ = ["ContractError", "TokenizerFiles", "export_bundle", "log_mel_of"]
