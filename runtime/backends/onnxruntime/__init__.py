"""ONNX Runtime on the CPU (`cpu`) and with its CUDA provider (`cuda`)."""
