"""Files of checkpoints -> plain data and tensors: bytes and layouts, no architectures.

Reading order: detection (the format of a directory), hub (the Hugging Face Hub), json_files,
pytorch_files, tensor_files, ctranslate2. Detection and hub import neither torch nor onnx.
"""
