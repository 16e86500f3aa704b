"""Fusions to the operators that are fastest in ONNX Runtime on the CPU, by measurement."""
