"""Errors of backends."""

from __future__ import annotations

from dragoman.errors import DragomanError


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle or a batch."""


class DeviceLostError(DragomanError):
    """A device failed, and this process cannot use it any more."""


def no_attention(name: str) -> str:
    """The problem with a bundle that lacks the graph that shows attention."""
    return (
        f"{name}: expected a bundle with the graph that shows attention, found none: build one for "
        "target cpu or neutral with --with-attention"
    )
