"""What goes wrong between a bundle and the library that should run it."""

from dragoman.errors import DragomanError


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle."""
