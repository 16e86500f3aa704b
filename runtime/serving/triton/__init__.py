"""Bundles in NVIDIA's Triton Inference Server: `dragoman deploy triton`.

Reading order: repository, model, instance.
"""
