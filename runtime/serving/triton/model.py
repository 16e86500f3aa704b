"""What Triton's Python backend runs for a model of a repository, next to its bundle; it is copied
there. All else is in the `dragoman` that is installed where Triton runs.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils  # which the backend provides

from dragoman.runtime.serving.triton.answering import Answering, open_model


class TritonPythonModel:
    """Called by the backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle."""
        self._answering: Answering = open_model(args, pb_utils)

    def execute(self, requests: list[Any]) -> None:
        """Take requests, which are answered later, each by its own sender."""
        for request in requests:
            self._answering.begin(request)

    def finalize(self) -> None:
        """Answer what was taken, and end."""
        self._answering.close()
