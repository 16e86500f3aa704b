"""Measurements: the speed of a bundle, and comparisons with other tools.

The modules of this package are what `dragoman bench` and `dragoman report` import, and part of the
wheel. Its packages are tools of the repository: `compare` and `gpu` measure Dragoman and other
tools, `peers` adapts these, `models` makes what is measured.
"""
