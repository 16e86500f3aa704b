"""Decoders alone compared with other tools: latency and throughput of greedy decoding.

The command is `python -m dragoman.benchmarks.language_model`.
"""
