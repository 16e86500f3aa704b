"""Reads files after checking them, and writes files whole or not at all.

This package knows nothing of models; every other part may import it.
"""
