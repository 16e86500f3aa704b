"""ONNX Runtime's CUDA provider, which runs a bundle's graphs on an NVIDIA GPU."""

PRECISIONS = ("fp32", "fp16", "int8", "int4")
"""Of which the provider has all kernels. In bf16 it has no ArgMax."""
