"""ONNX Runtime on the processor. Reading order: memory, state, backend."""
