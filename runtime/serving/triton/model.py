"""The model that Triton's Python backend runs.

This file is copied into the model repository.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils  # provided by the backend

from dragoman.runtime.serving.triton.instance import ModelInstance, open_instance


class TritonPythonModel:
    """The model class that the backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle."""
        self._instance: ModelInstance = open_instance(args, pb_utils)

    def execute(self, requests: list[Any]) -> None:
        """Accept requests; their responses are sent later."""
        for request in requests:
            self._instance.submit(request)

    def finalize(self) -> None:
        """Finish all accepted requests, and close the model."""
        self._instance.close()
