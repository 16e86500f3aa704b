"""The inputs that a bundle is compared on: files, held-out data, or random inputs.

Reading order: items, sources, parity_inputs, file_inputs, choosing.
"""
