"""Passes on ONNX graphs, precision, and engines.

Reading order: graph_pass, pipeline, fusions, targets, recipe, a target's folder, precision,
target_bundle.
"""
