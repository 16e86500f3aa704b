"""PyTorch -> neutral ONNX graphs, in a bundle."""

from .bundle import export_bundle, log_mel_of
from .contract import ContractError
from .tokenizers import TokenizerFiles

__all__ = ["ContractError", "TokenizerFiles", "export_bundle", "log_mel_of"]
