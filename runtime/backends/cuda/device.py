"""What decoding asks of a GPU: memory, streams, copies, graphs. `driver.CudaDevice` gives it.

Addresses are numbers. All work of a stream is done in order, later; nothing here waits for it but
`wait`, `synchronize` and the freeing of memory.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Device(Protocol):
    """Every method raises a BackendError if the device refuses, a DeviceLostError if it is gone."""

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""

    def free(self, address: int) -> None: ...

    def allocate_host(self, size: int) -> Bytes:
        """Memory of this machine that the device reaches by itself: page-locked."""

    def free_host(self, memory: Bytes) -> None: ...

    def new_stream(self) -> int: ...

    def free_stream(self, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None:
        """Wait until everything in the stream is done."""

    def new_event(self) -> Any: ...

    def free_event(self, event: Any) -> None: ...

    def record(self, event: Any, stream: int) -> None:
        """Let the event happen when all that is in the stream now is done."""

    def wait(self, event: Any) -> None:
        """Until the event has happened."""

    def upload(self, address: int, values: NDArray[Any], stream: int) -> None:
        """Copy an array; it may be changed at once."""

    def download(self, memory: Bytes, address: int, stream: int) -> None:
        """Fill memory from `allocate_host`; it is filled when the stream has come to it."""

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Within the device, to where nothing of the source lies."""

    def copy_2d(
        self, to: int, source: int, pitch: int, width: int, height: int, stream: int
    ) -> None:
        """The first `width` bytes of each of `height` lines that lie `pitch` bytes apart."""

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set bytes to zero."""

    def begin_capture(self, stream: int) -> None:
        """Collect what is put into the stream, instead of doing it."""

    def end_capture(self, stream: int) -> Any:
        """What was collected, to be launched as one."""

    def launch(self, graph: Any, stream: int) -> None: ...

    def free_graph(self, graph: Any) -> None: ...

    def free_memory(self) -> int:
        """Bytes that can still be allocated."""
