"""The bundle: the graph contract, the manifest, the files on disk.

Reading order: contract, model_spec, manifest, validation, bundle, writing.
This package does not depend on backends, tokenizer libraries or audio features.
"""
