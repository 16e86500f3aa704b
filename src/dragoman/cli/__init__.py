"""The command line: one module a command, one screen of help each."""

from .main import main

__all__ = ["main"]
