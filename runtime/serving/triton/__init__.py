"""Bundles in NVIDIA's Triton Inference Server: `dragoman deploy triton`.

Reading order: repository, which writes model repositories; model, the file that Triton's Python
backend runs; instance, which model uses.
"""
