"""Bundles in NVIDIA's Triton Inference Server: `dragoman deploy triton`.

Reading order: config and repository, which write what a Triton serves; model, the file that its
Python backend runs; requests and answering, which that uses.
"""
