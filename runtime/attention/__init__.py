"""Attention maps of an input, and word alignments.

Reading order: alignment, reader.
"""
