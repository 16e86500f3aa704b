"""Checks and measurements on NVIDIA GPUs: `make gpu` or `python -m dragoman.benchmarks.gpu`."""
