"""Adapters to other tools, which Dragoman is compared with on the same weights.

A tool has two functions: `prepare` converts a checkpoint, given its directory and a path that does
not exist yet, and returns the directory to load, where several modes may share files next to that
path; `load` loads it with a number of threads. Both take the `mode`, such as a compute type, if it
matters. Adapters do not import the code that measures them. Their libraries are optional: `pip
install --group peers`.
"""
