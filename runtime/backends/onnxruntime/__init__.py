"""ONNX Runtime on the processor (`cpu`) and with its CUDA provider (`cuda`)."""
