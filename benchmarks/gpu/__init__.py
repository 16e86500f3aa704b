"""What takes an NVIDIA GPU to know: `python -m dragoman.benchmarks.gpu`, or `make gpu`."""
