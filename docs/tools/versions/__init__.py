"""Runs bundles of the pinned versions with other versions of the libraries.

Reading order: __main__, child.
"""
