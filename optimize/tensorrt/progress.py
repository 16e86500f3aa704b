"""The progress of a build, and cancelling one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Progress = Callable[[str, float], None]
"""Called with a phase of the build, and the completed share of it."""


def make_monitor(trt: Any, progress: Progress, cancelled: threading.Event) -> Any:
    """A progress monitor of the package `trt`; the build ends soon after `cancelled` is set."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self._steps[phase] = max(1, steps)
            progress(phase, 0.0)

        def phase_finish(self, phase: str) -> None:
            progress(phase, 1.0)

        def step_complete(self, phase: str, step: int) -> bool:
            progress(phase, min(1.0, (step + 1) / self._steps.get(phase, 1)))
            return not cancelled.is_set()

    return Monitor()
