"""Passes on ONNX graphs. Holds none yet: bundles are the neutral graphs that `export` makes."""
