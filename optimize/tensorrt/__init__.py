"""Neutral graphs -> engines of TensorRT-RTX or TensorRT. Only refitting, and building with the full
TensorRT, need a GPU.
"""
