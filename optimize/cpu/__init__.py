"""The fastest forms for ONNX Runtime on a processor, found by measuring."""
