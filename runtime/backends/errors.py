"""What goes wrong between a bundle and the library that runs it."""

from __future__ import annotations

from dragoman.errors import DragomanError


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle or a batch."""


class DeviceLostError(DragomanError):
    """A device failed in such a way that this process cannot use it any more."""
