"""PyTorch -> neutral ONNX graphs, in a bundle."""

from .neutral_bundle import export_bundle, log_mel_of
from .graph_check import ContractError
from .tokenizers import TokenizerFiles

__all__ = ["ContractError", "TokenizerFiles", "export_bundle", "log_mel_of"]
