"""Checks and measures what needs an NVIDIA GPU: `make gpu`, `python -m dragoman.benchmarks.gpu`."""
