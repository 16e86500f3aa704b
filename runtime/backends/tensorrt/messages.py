"""TensorRT's messages, collected for the one error that the user sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NO_DRIVER = "CUDA driver version is insufficient"
"""Logged as an error in every build without a GPU, without consequences."""


@dataclass
class Messages:
    """Warnings and errors, in order of arrival."""

    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why something failed, in one line. The last message is the most specific."""
        relevant = [m for m in self.errors if NO_DRIVER not in m] or self.errors
        return " ".join(relevant[-1].split()) if relevant else "TensorRT gives no reason"


def make_logger(trt: Any, messages: Messages) -> Any:
    """A logger of the package `trt` that keeps messages instead of printing them."""
    severities = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (severities.ERROR, severities.INTERNAL_ERROR):
                messages.errors.append(message)
            elif severity == severities.WARNING:
                messages.warnings.append(message)

    return Logger()
