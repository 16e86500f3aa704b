"""The GPU of this machine, through NVIDIA's bindings."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import BackendError


class Gpu(NamedTuple):
    """
    Attributes:
        compute_capability: such as "8.9"
        cuda: the newest CUDA version that its driver supports, such as "13.0"
    """

    name: str
    compute_capability: str
    cuda: str


def find_gpu() -> Gpu:
    """The first GPU that CUDA sees.

    Raises:
        BackendError: there is no GPU or no driver, or the bindings are not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendError(
            f"the package cuda-bindings cannot be imported ({error}): pip install cuda-bindings"
        ) from error
    count = _value(runtime, *runtime.cudaGetDeviceCount())
    if count == 0:
        raise BackendError("found no NVIDIA GPU")
    properties = _value(runtime, *runtime.cudaGetDeviceProperties(0))
    name = properties.name.decode() if isinstance(properties.name, bytes) else properties.name
    version = int(_value(runtime, *runtime.cudaDriverGetVersion()))
    return Gpu(
        name.rstrip("\0"),
        f"{properties.major}.{properties.minor}",
        f"{version // 1000}.{version % 1000 // 10}",
    )


def _value(runtime: Any, status: Any, value: Any) -> Any:
    if status != runtime.cudaError_t.cudaSuccess:
        _, reason = runtime.cudaGetErrorString(status)
        raise BackendError(f"found no NVIDIA GPU that works: {reason.decode()}")
    return value
