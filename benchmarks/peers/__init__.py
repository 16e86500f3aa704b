"""Adapters to other tools, which are given the same weights and measured beside Dragoman.

They know the types of `interface` and nothing of the rooms that measure them (`..text`,
`..speech`). Their libraries are optional: `pip install --group peers`.
"""
