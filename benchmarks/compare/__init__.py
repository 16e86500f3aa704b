"""Comparisons of Dragoman with other tools: one harness, and one task per kind of work.

    python -m dragoman.benchmarks.compare TASK --output benchmarks/results

`task` is the command line, `rounds` runs contenders in interleaved rounds, `record` prints and
writes records. Each module of `tasks` has the contenders, measurement and columns of a task.
"""
