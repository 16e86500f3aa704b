"""Comparison with faster-whisper and OpenVINO GenAI: the same weights, clips and threads,
interleaved in one run.

The command is `python -m dragoman.benchmarks.speech`.
"""
