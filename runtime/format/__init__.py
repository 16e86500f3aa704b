"""What a bundle is: the graph contract, the manifest, the files on disk.

Reading order: contract, model_spec, executables, manifest, consistency, bundle, writing.
Nothing here knows a backend, a tokenizer's library or how audio becomes features.
"""
