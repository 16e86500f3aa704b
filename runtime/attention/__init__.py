"""Attention maps of an input, and word alignments.

Reading order: maps, alignment, reader.
"""
