"""Measurements: the speed of a bundle, and comparisons with other tools.

`dragoman bench` and `dragoman report` import the modules of this package, which are part of the
wheel. Its subpackages are tools of the repository: `compare` and `gpu` measure Dragoman and other
tools, `peers` adapts other tools, and `models` creates models and bundles.
"""
