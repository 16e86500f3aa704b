"""ONNX to ONNX: graph passes, precision, and TensorRT engines. Needs no torch.

A bundle of neutral graphs becomes one for a target (`target_bundle`), and any ONNX Transformer
becomes a graph of standard operators (`onnx_file`). Every pass is checked by running the graph
before and after it.

Reading order: graph_pass, pipeline, fusions, targets, a target's folder, precision, target_bundle.
"""
