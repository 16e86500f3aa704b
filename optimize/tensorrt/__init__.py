"""Engines of TensorRT-RTX or TensorRT, built from neutral graphs.

Only refitting, and building with the full TensorRT, need a GPU.
"""
