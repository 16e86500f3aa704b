"""Texts, as token ids: latency and throughput of greedy decoding compared with other tools.

The command is `python -m dragoman.benchmarks.compare`.
"""
