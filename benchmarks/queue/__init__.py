"""A queue of requests of unequal length: a batch that is refilled as outputs end, compared with
batches that are frozen when they start.

The command is `python -m dragoman.benchmarks.queue`.
"""
