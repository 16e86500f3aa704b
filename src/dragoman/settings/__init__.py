"""Settings of models and options of calls: plain records, each with its checks.

The PyTorch model, the bundle's manifest, the runtime and the command line share them, so that a
setting is declared once. Nothing here knows a tensor or a file format.
"""
