"""The command line, with one module per command."""

from .main import main

__all__ = ["main"]
