"""A double of `triton_python_backend_utils` and of requests, after Triton's documentation."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class Tensor:
    def __init__(self, name: str, values: NDArray[Any]) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._values


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = "internal", "invalid", "unavailable", "gone"

    def __init__(self, message: str, code: str) -> None:
        self.text, self.code = message, code


class InferenceResponse:
    def __init__(
        self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None
    ) -> None:
        self.tensors = {t.name(): t.as_numpy() for t in output_tensors or []}
        self.error = error


class Logger:
    lines: ClassVar[list[str]] = []

    @classmethod
    def log_error(cls, line: str) -> None:
        cls.lines.append(line)

    @classmethod
    def log_warn(cls, line: str) -> None:
        cls.lines.append(line)


class Sender:
    """Refuses anything after the last response, which is undefined in Triton."""

    def __init__(self) -> None:
        self.sent: queue.Queue[InferenceResponse] = queue.Queue()
        self.cancelled, self.final = False, False

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self.final
        self.final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.sent.put(response)

    def is_cancelled(self) -> bool:
        assert not self.final
        return self.cancelled


@dataclass
class Request:
    tensors: list[Tensor]
    values: dict[str, Any] = field(default_factory=dict)
    microseconds: int = 0
    sender: Sender = field(default_factory=Sender)

    def inputs(self) -> list[Tensor]:
        return self.tensors

    def parameters(self) -> str:
        return json.dumps(self.values)

    def timeout(self) -> int:
        return self.microseconds

    def get_response_sender(self) -> Sender:
        return self.sender

    def answer(self) -> InferenceResponse:
        """The next response."""
        return self.sender.sent.get(timeout=60)

    def answers(self) -> list[InferenceResponse]:
        """All, to the last."""
        found = [self.answer()]
        while not (self.sender.final and self.sender.sent.empty()):
            found.append(self.answer())
        return found


def texts(*values: str | bytes, name: str = "text") -> Tensor:
    array: NDArray[Any] = np.empty(len(values), object)
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return Tensor(name, array)
