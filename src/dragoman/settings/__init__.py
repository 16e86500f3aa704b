"""Settings of models and options of calls: dataclasses with checks.

The PyTorch model, the manifest, the runtime and the command line share them, so that a setting is
declared once. They are independent of tensors and file formats.
"""
