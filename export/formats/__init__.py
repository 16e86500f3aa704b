"""Files of checkpoints -> plain data and tensors: bytes and layouts, no architectures.

Reading order: detection, hub (both import neither torch nor onnx), json_files, tensor_files,
ctranslate2.
"""
