"""The bundle: the graph contract, the manifest, the files on disk.

Reading order: contract, model_spec, manifest, validation, bundle, writing.
Nothing here knows a backend, a tokenizer's library or how audio becomes features.
"""
