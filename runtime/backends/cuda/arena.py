"""Device memory by name. A reservation keeps its address until a larger one is needed, so that
graphs captured with it can be launched again for later batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from .device import Device


class Arena:
    """Memory of one user of a device.

    Attributes:
        version: changes whenever an address does
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[str, tuple[int, int]] = {}
        self.version = 0

    def reserve(self, name: str, size: int) -> int:
        """The address of at least this many bytes. Their contents may be lost."""
        address, present = self._known.get(name, (0, -1))
        if size <= present:
            return address
        if present >= 0:
            del self._known[name]
            self._device.free(address)
        self._known[name] = (self._device.allocate(size), size)
        self.version += 1
        return self._known[name][0]

    def grow(self, sizes: Mapping[str, int], stream: int) -> None:
        """Make reservations at least as large as this. Their contents stay, in the order of the
        stream. If memory does not suffice, nothing has changed.
        """
        new: dict[str, tuple[int, int]] = {}
        try:
            for name, size in sizes.items():
                if size > self._known.get(name, (0, -1))[1]:
                    new[name] = (self._device.allocate(size), size)
        except BaseException:
            for address, _ in new.values():
                self._device.free(address)
            raise
        old = {name: self._known[name] for name in new.keys() & self._known.keys()}
        for name, (address, size) in old.items():
            self._device.copy(new[name][0], address, size, stream)
        self._known |= new
        self.version += len(new)
        for address, _ in old.values():  # waits for the copies
            self._device.free(address)

    def address(self, name: str) -> int:
        """Of a reservation."""
        return self._known[name][0]

    @property
    def size(self) -> int:
        """Bytes reserved."""
        return sum(size for _, size in self._known.values())

    def close(self) -> None:
        """Free everything."""
        while self._known:
            _, (address, _) = self._known.popitem()
            self._device.free(address)
