"""Texts, as token ids: latency and throughput of greedy decoding beside other tools.

The command is `python -m dragoman.benchmarks.compare`.
"""
