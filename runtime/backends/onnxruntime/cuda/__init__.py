"""ONNX Runtime's CUDA provider, which runs a bundle's graphs on an NVIDIA GPU.

Reading order: sizes, sessions, workspace, backend.
"""
