"""Counts how many operators each optimizer fuses in models that other exporters wrote.

The command is `python -m docs.tools.fusion_table`.
"""
