"""Everything that needs an NVIDIA GPU: `python -m dragoman.benchmarks.gpu`, or `make gpu`."""
