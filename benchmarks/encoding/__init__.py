"""Vectors of sentences: latency and throughput compared with other tools.

The command is `python -m dragoman.benchmarks.encoding`.
"""
