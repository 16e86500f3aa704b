"""How many operators each optimizer fuses in models that other exporters wrote.

The command is `python -m dragoman.benchmarks.fusion_table`.
"""
