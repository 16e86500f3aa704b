"""Device memory by name. A reservation keeps its address until a larger one is needed, so that
graphs captured with it can be launched again for later batches."""

from __future__ import annotations

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

    @property
    def size(self) -> int:
        """Bytes reserved."""
        return sum(size for _, size in self._known.values())

    def close(self) -> None:
        """Free everything."""
        while self._known:
            _, (address, _) = self._known.popitem()
            self._device.free(address)
