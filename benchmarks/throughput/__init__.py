"""How many tokens a second a machine gives that works off a queue, each tool arranged as suits it
best: how many workers, with how many threads each, how many sentences at once.

The command is `python -m dragoman.benchmarks.throughput`.
"""
