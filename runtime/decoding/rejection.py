"""Inputs that a model cannot decode."""

from __future__ import annotations

from dragoman.errors import DragomanError


class RejectedError(DragomanError):
    """An input that cannot be decoded."""


NO_OUTPUT = "found no output that all rules and phrases allow"
