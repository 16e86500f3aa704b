"""ONNX to ONNX: graph passes, precision, and TensorRT engines.

A bundle of neutral graphs becomes one for a target (`bundle`), and any ONNX Transformer becomes a
graph of standard operators (`onnx_file`). `fusions` match what exporters write, `cpu` holds ONNX
Runtime's own operators, `precision` fewer bits, `tensorrt` engines. Every pass is checked by
running the graph before and after it (`pipeline`). Needs no torch.
"""
