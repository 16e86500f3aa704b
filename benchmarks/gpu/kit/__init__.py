"""A kit for a GPU machine without a network: what `make gpu` needs there, cut into small parts.

    python -m dragoman.benchmarks.gpu.kit --output gpu-kit

Reading order: contents (what is in it), wheels (from the package index to a folder), needs (what
the machine must have), packing (from a folder to parts), install (the script that puts them
together there; it is copied into the kit and imports nothing of Dragoman).
"""
