"""The inputs that a bundle is compared on: files, held-out data, or random inputs.

Reading order: items, sources, metrics, parity_inputs, file_inputs, choosing.
"""
