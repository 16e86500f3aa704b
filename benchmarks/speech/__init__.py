"""Comparison with faster-whisper: the same weights, clips and threads, interleaved in one run.

The command is `python -m dragoman.benchmarks.speech`.
"""
