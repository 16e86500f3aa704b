"""Files of checkpoints -> plain data and tensors: bytes and layouts, no architectures.

Reading order: detection (which format a directory is in), json_files, pytorch_files, tensor_files,
state_dict, ctranslate2. Detection imports neither torch nor onnx.
"""
