"""Comparisons of Dragoman with other tools: one harness, and one task per kind of work.

`task` is the command, `options` its options, `rounds` runs contenders in interleaved rounds, and
`record` prints and writes records. Each module of `contenders` lists tools and how they load, and
each of `tasks` measures them and has the columns of a task.
"""
