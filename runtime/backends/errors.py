"""What goes wrong between a bundle and the library that should run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from ..results import Result


class BackendError(DragomanError):
    """A backend is missing, lacks its device, or cannot run the bundle or a batch."""


class DeviceLostError(DragomanError):
    """A device failed in a way that nothing more can be done with it in this process.

    Attributes:
        finished: results of the call that are done, by index of their source
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.finished: dict[int, Result] = {}
