"""How latency and tokens a second grow with the batch, and with the length of the source.

The command is `python -m dragoman.benchmarks.growth`.
"""
