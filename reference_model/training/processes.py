"""The processes of a training: those that `torchrun` starts, their devices, and their signals."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dragoman.errors import DragomanError, shown

# Each process computes the gradient of its part of every step, and the sum of all is everyone's
# gradient (data parallelism, Li et al. 2020). Process 0 validates, writes and prints. Without a
# process group of `torch.distributed` there is one process, number 0.

Result = TypeVar("Result")

CPU = torch.device("cpu")
LONGEST_WAIT = timedelta(days=7)
"""The time that processes wait for process 0, such as while it validates."""


class ProcessError(DragomanError):
    """Process 0 ended with an error, which it raises itself."""


class Stopped(BaseException):
    """A signal arrived; not an Exception, so that nothing handles it on the way."""

    def __init__(self, number: int) -> None:
        self.signal = number


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that `torchrun` started, if it started this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    try:
        yield
        dist.barrier()  # a process that ends while another still works may abort
    finally:
        dist.destroy_process_group()


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process."""
    return dist.get_rank() if world_size() > 1 else 0


def training_device(name: str | None) -> torch.device:
    """Return the device of this process: cpu, cuda or cuda:N; by default a GPU if there is one.

    Raises:
        DragomanError: the name is another one, there is no such GPU, or there are fewer GPUs than
            processes.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name is None and not found):
        return CPU
    match = re.fullmatch(r"cuda(?::(\d+))?", name or "cuda")
    if match is None:
        raise DragomanError(f"device: expected cpu, cuda or cuda:N, found {shown(name)}")
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    index = int(match[1] or os.environ.get("LOCAL_RANK", "0"))
    if processes > 1 and match[1]:
        raise DragomanError(
            f"device: expected cpu or cuda for {processes} processes, of which each has a GPU of "
            f"its own, found {name}"
        )
    needed = max(processes, index + 1)
    if found < needed:
        gpus = "1 GPU" if needed == 1 else f"{needed} GPUs"
        raise DragomanError(
            f"device {name or 'cuda'}: expected {gpus} that PyTorch can use, found {found}; choose "
            "another device, such as cpu"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def divided(batches: Sequence[Any]) -> list[Any]:
    """Return this process's part of a step's batches: whole ones, or a part of each; or none."""
    processes = world_size()
    if len(batches) % processes == 0:
        return list(batches[rank() :: processes])
    parts = [batch[rank() :: processes] for batch in batches]
    return [part for part in parts if len(part)]


def add_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each process's gradients by the sum of those of all processes."""
    if world_size() == 1:
        return
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    vector = parameters_to_vector(gradients)
    dist.all_reduce(vector)
    vector_to_parameters(vector, gradients)


def copy_from_process_0(parameters: Iterable[nn.Parameter]) -> None:
    """Copy the weights of process 0 into those of the others."""
    if world_size() > 1:
        for parameter in parameters:
            dist.broadcast(parameter.data, 0)


def added(figure: float) -> float:
    """Return the sum of the figures of all processes."""
    return _reduced(torch.tensor(figure, dtype=torch.float64), dist.ReduceOp.SUM)


def largest(number: int) -> int:
    """Return the largest of the numbers of all processes."""
    return int(_reduced(torch.tensor(number), dist.ReduceOp.MAX))


def _reduced(value: Tensor, operation: dist.ReduceOp.RedOpType) -> float:
    if world_size() > 1:
        dist.all_reduce(value, operation)
    return value.item()


def from_process_0(function: Callable[[], Result]) -> Result:
    """Call a function in process 0, and return its result, which goes through JSON, in all.

    Raises:
        Stopped: a signal stopped it in process 0.
        ProcessError: in the other processes, if it raised an error.
    """
    if world_size() == 1:
        return function()
    if rank():
        outcome, value = _sent(("error", None))
        if outcome == "error":
            raise ProcessError("process 0 ended with an error")
        if outcome == "stopped":
            raise Stopped(value)
        result: Result = value
        return result
    try:
        result = function()
    except Stopped as stopped:
        _sent(("stopped", stopped.signal))
        raise
    except BaseException:
        _sent(("error", None))
        raise
    _sent(("result", result))
    return result


def _sent(outcome: tuple[Literal["result", "stopped", "error"], Any]) -> tuple[str, Any]:
    data = torch.frombuffer(bytearray(json.dumps(outcome).encode()), dtype=torch.uint8)
    size = torch.tensor(len(data))
    dist.broadcast(size, 0)
    if rank():
        data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, 0)
    kind, value = json.loads(bytes(data.tolist()))
    return kind, value


def process_0_first(function: Callable[[], Result]) -> Result:
    """Call a function in process 0 and then, unless it raised an error, in the others."""
    results: list[Result] = []
    from_process_0(lambda: results.append(function()))
    return function() if rank() else results[0]


class StopSignals:
    """Receives SIGINT and SIGTERM in the main thread, so that a training stops between steps.

    A second signal raises KeyboardInterrupt at once. `received` is the number of the first, or 0.
    """

    def __init__(self) -> None:
        self.received = 0
        self._raise = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        if self._raise:
            raise Stopped(number)

    def check(self) -> None:
        """Raise `Stopped` if a signal arrived in one of the processes."""
        number = largest(self.received)
        if number:
            raise Stopped(number)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise `Stopped` as soon as a signal arrives, for work that can be repeated."""
        if self.received:
            raise Stopped(self.received)
        self._raise = True
        try:
            yield
        finally:
            self._raise = False
