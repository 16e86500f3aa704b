"""Adapters to other tools, which Dragoman is compared with on the same weights.

They do not import the code that measures them. Their libraries are optional: `pip install --group
peers`.
"""
