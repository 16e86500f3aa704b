"""Errors as results: a part of `make gpu` records them and continues."""

from __future__ import annotations


def one_line(error: Exception) -> str:
    """The error's type and message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
