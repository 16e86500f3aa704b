"""TensorRT-RTX and TensorRT, which run a bundle's engines on an NVIDIA GPU.

Reading order: packages, engines, workspace, backend.
"""
