"""The part of a GPU's API that decoding needs; `driver.CudaDevice` implements it.

Addresses are numbers. The work of a stream is done in order and asynchronously; only `wait`,
`synchronize` and freeing memory wait for it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Device(Protocol):
    """Every method raises a BackendError if the device refuses, a DeviceLostError if it is lost."""

    def allocate(self, size: int) -> int:
        """The address of this many bytes."""

    def free(self, address: int) -> None: ...

    def allocate_host(self, size: int) -> Bytes:
        """Page-locked host memory, which the device accesses directly."""

    def free_host(self, memory: Bytes) -> None: ...

    def new_stream(self) -> int: ...

    def free_stream(self, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None:
        """Wait until everything in the stream is done."""

    def new_event(self) -> Any: ...

    def free_event(self, event: Any) -> None: ...

    def record(self, event: Any, stream: int) -> None:
        """Signal the event when everything in the stream so far is done."""

    def wait(self, event: Any) -> None:
        """Wait until the event is signalled."""

    def follow(self, event: Any, stream: int) -> None:
        """Let the stream wait until the event is signalled as last recorded."""

    def upload(self, address: int, values: NDArray[Any], stream: int) -> None:
        """Copy an array, which the caller may change as soon as this returns."""

    def download(self, memory: Bytes, address: int, stream: int) -> None:
        """Fill memory from `allocate_host`, when the stream gets there."""

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Within the device; the ranges must not overlap."""

    def copy_2d(
        self,
        to: int,
        to_pitch: int,
        source: int,
        pitch: int,
        width: int,
        height: int,
        stream: int,
    ) -> None:
        """The first `width` bytes of each of `height` lines, which lie `pitch` bytes apart and get
        to lie `to_pitch` bytes apart. No line may overlap one that is written.
        """

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set bytes to zero."""

    def begin_capture(self, stream: int) -> None:
        """Record what is enqueued from now on instead of running it."""

    def end_capture(self, stream: int) -> Any:
        """What was recorded, as a graph to be launched."""

    def launch(self, graph: Any, stream: int) -> None: ...

    def free_graph(self, graph: Any) -> None: ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
