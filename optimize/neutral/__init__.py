"""The neutral target: standard ONNX operators only, in any precision."""
