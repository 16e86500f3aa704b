"""Adapters to other tools, which are given the same weights and compared with Dragoman.

They import the types of `interface`, but not the packages that measure them (`..text`,
`..speech`). Their libraries are optional: `pip install --group peers`.
"""
