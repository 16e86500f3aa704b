"""Comparisons of Dragoman with other tools: one harness, and a task for each kind of work.

    python -m dragoman.benchmarks.compare TASK --output benchmarks/results

`task` is the command line, `rounds` lets contenders take turns, `record` prints and writes what was
measured. A module of `tasks` has the contenders, the measurement and the columns of a task.
"""
