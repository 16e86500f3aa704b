"""Which errors mean that a GPU is lost, and what a server does then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import DeviceLostError, Model, UnfinishedError
from dragoman.runtime.backends.cuda import Device
from dragoman.runtime.backends.cuda.device import FATAL_ERRORS, RESTART
from dragoman.runtime.backends.interface import BackendError

from ...device_double import DoubleDevice
from .gpu_models import CAPACITY

CODES = Path(__file__).with_name("cuda_errors.txt")
"""The codes of cudaError_t in cuda-bindings 12.8 to 13.5: number, name, and whether it is lost."""

FAILURES = Path(__file__).with_name("failures.txt")
"""Messages of ONNX Runtime and TensorRT from their sources and issues.

"lost" names a fatal error of CUDA; for "ask", only the device knows.
"""


def messages(verdict: str) -> list[str]:
    lines = [line.split(" | ", 1) for line in FAILURES.read_text().splitlines()]
    return [message for kind, message in lines if kind == verdict]


def lost_device() -> DoubleDevice:
    def refuse(name: str) -> None:
        raise DeviceLostError(f"{name}: an illegal memory access (cudaErrorIllegalAddress)")

    return DoubleDevice(refuse=refuse)


def test_every_code_of_cuda_is_classified() -> None:
    runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")
    rows = [line.split() for line in CODES.read_text().splitlines()]
    known = {name: int(number) for number, name, _ in rows}
    assert {name: known[name] for _, name, kind in rows if kind == "lost"} == FATAL_ERRORS
    found = {code.name: code for code in runtime.cudaError_t if code.name != "cudaSuccess"}
    assert {name: known.get(name) for name in found} == {n: int(c) for n, c in found.items()}
    for name, code in found.items():
        documentation = " ".join((code.__doc__ or "").split())
        if "the process must be terminated and relaunched" in documentation:
            assert name in FATAL_ERRORS


@pytest.mark.parametrize("message", messages("lost"))
def test_a_message_that_names_a_fatal_error_says_that_the_device_is_lost(message: str) -> None:
    device = DoubleDevice()
    failure = device.failure(message)
    assert type(failure) is DeviceLostError
    assert str(failure) == f"{message}: {RESTART}"
    assert "free_memory" not in device.log


@pytest.mark.parametrize("message", messages("ask"))
def test_the_device_is_asked_where_the_message_does_not_say(message: str) -> None:
    usable, lost = DoubleDevice().failure(message), lost_device().failure(message)
    assert (type(usable), str(usable)) == (BackendError, message)
    assert type(lost) is DeviceLostError
    assert str(lost).startswith(f"{message}: ") and "cudaErrorIllegalAddress" in str(lost)


@pytest.mark.parametrize("name", FATAL_ERRORS)
def test_a_device_in_any_fatal_state_is_lost(name: str) -> None:
    """cuBLAS says only that its kernel failed; CUDA repeats a fatal error in every call."""
    runtime: Any = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")

    class Cuda:
        def __getattr__(self, function: str) -> Any:
            if function in ("cudaError_t", "cudaStreamCaptureMode", "cudaGetErrorString"):
                return getattr(runtime, function)
            return lambda *arguments: (getattr(runtime.cudaError_t, name), 0, 0)

    device = Device()
    device._cuda = Cuda()
    failure = device.failure("CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED")
    assert type(failure) is DeviceLostError
    assert str(failure).endswith(f"({name}): {RESTART}")


@pytest.mark.parametrize("message", [messages("lost")[0], messages("ask")[0]])
def test_a_run_that_fails_on_a_lost_device_ends_the_call(
    model: Model, device: DoubleDevice, message: str
) -> None:
    """In either library: one raises, the other writes to its logger."""

    def refuse(name: str) -> None:
        if name == "run":
            raise RuntimeError(message)
        if name == "free_memory":
            raise DeviceLostError("cudaMemGetInfo: unspecified failure (cudaErrorLaunchFailure)")

    device.refuse = refuse
    with pytest.raises(UnfinishedError) as error:
        model.generate([[3, 4], [5]], max_new_tokens=CAPACITY)
    assert message in str(error.value)
    device.refuse = lambda name: None


def test_a_model_whose_device_is_lost_closes_silently(model: Model, device: DoubleDevice) -> None:
    """Whatever is freed then, CUDA refuses; the process that ends frees it."""
    sources, mask = np.array([[3, 4]]), np.array([[True, True]])
    states = [
        model.backend.start(sources, mask, np.array([[1]]), CAPACITY) for _ in range(3)
    ]  # each has a workspace

    def refuse(name: str) -> None:
        raise DeviceLostError(f"{name}: an illegal memory access (cudaErrorIllegalAddress)")

    for state in states:
        state.close()
    device.refuse = refuse
    with pytest.raises(UnfinishedError):
        model.generate([[3, 4]], max_new_tokens=CAPACITY)
    model.close()
    model.close()
