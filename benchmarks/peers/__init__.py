"""Adapters to other tools, which are given the same weights and compared with Dragoman.

They import the types of `interface`, but nothing that measures them. Their libraries are optional:
`pip install --group peers`.
"""
