"""What goes wrong between a bundle and the library that should run it."""

from dragoman.errors import DragomanError


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle or a batch."""


class DeviceLostError(DragomanError):
    """A device failed in a way that nothing more can be done with it in this process."""
