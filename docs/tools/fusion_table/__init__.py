"""Counts the operators that each optimizer fuses in models of other exporters.

The command is `python -m docs.tools.fusion_table`.
"""
