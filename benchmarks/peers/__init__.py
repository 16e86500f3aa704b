"""Adapters to other tools, which are given the same weights and measured beside Dragoman.

They import the types of `interface`, but not the packages that measure them (`..text`,
`..speech`). Their libraries are optional: `pip install --group peers`.
"""
