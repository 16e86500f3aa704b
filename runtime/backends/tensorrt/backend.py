"""The backend of TensorRT-RTX and TensorRT. See `interface.Backend`.

Sizes of batches are rounded up, so that batches reuse execution contexts and captured graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...format.bundle import Bundle
from ...format.manifest import Profile, Range, TensorRTEngines
from ..cuda import Device
from ..cuda.backend import DeviceBackend
from ..cuda.layout import Sizes, multiple_of, power_of_two, row_bytes
from ..interface import BackendError, Limits
from .engines import LoadedEngine, load_engine, usable_package
from .packages import Package
from .workspace import EngineWorkspace, KernelCache

SOURCE_STEP = 16
"""Source lengths are rounded up to multiples of this."""


class ProfileRounding:
    """Rounds sizes up within the profiles of engines; implements `layout.Rounding`."""

    def __init__(self, engines: TensorRTEngines) -> None:
        self._engines = engines

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """Return the sizes of a new batch, or of a batch that others join."""
        if capacity > self._engines.capacity:
            raise BackendError(
                f"the engines hold {self._engines.capacity} target positions: found {capacity}"
            )
        return sizes_for(self._engines.profiles, sources, source, width)

    def after(self, present: Sizes, sources: int) -> Sizes:
        """Return the sizes of a batch with this number of remaining sources."""
        return sizes_after(self._engines.profiles, present, sources)


def sizes_for(profiles: Sequence[Profile], sources: int, source: int, width: int = 1) -> Sizes:
    """Round sources up to a power of two, and their length to a multiple of `SOURCE_STEP`.

    The result has the smallest profile that fits.

    Raises:
        BackendError: no profile fits; states the limits.
    """
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        if _fits(sources, batch, width) and source <= lengths.largest:
            padded = multiple_of(SOURCE_STEP, source)
            return Sizes(
                index,
                _rounded(sources, batch, width),
                min(max(padded, lengths.smallest), lengths.largest),
                width=width,
            )
    known = "; ".join(f"{p.batch.largest} rows of {p.source.largest} tokens" for p in profiles)
    raise BackendError(
        f"the engines take batches of at most {known}: found {sources * width} rows of {source} "
        "tokens"
    )


def sizes_after(profiles: Sequence[Profile], present: Sizes, sources: int) -> Sizes:
    """Return the sizes of a batch with this number of remaining sources; their length stays."""
    for index in _by_batch(profiles):
        batch, lengths = profiles[index].batch, profiles[index].source
        fits = lengths.smallest <= present.source <= lengths.largest
        if fits and _fits(sources, batch, present.width):
            rounded = _rounded(sources, batch, present.width)
            return present._replace(profile=index, sources=rounded)
    return present


def _by_batch(profiles: Sequence[Profile]) -> list[int]:
    return sorted(range(len(profiles)), key=lambda i: profiles[i].batch.largest)


def _fits(sources: int, batch: Range, width: int) -> bool:
    """Return whether some multiple of the width within the range is enough for the rows."""
    return max(sources, -(-batch.smallest // width)) * width <= batch.largest


def _rounded(sources: int, batch: Range, width: int) -> int:
    """Round the number of sources up, so that their rows are within the range."""
    smallest, largest = -(-batch.smallest // width), batch.largest // width
    return min(max(power_of_two(sources), smallest), largest)


MEMORY_SHARE = 0.9
"""Share of free memory that a batch may use."""


class TensorRTBackend(DeviceBackend):
    """The backend for a bundle's engines on one device."""

    def __init__(
        self, bundle: Bundle, engines: TensorRTEngines, package: Package, device: Device
    ) -> None:
        super().__init__(bundle.manifest, device, ProfileRounding(engines))
        self._built, self._package = engines, package
        self._engines: dict[str, LoadedEngine] = {
            name: load_engine(package, bundle, graph.file)
            for name, graph in self.manifest.graphs.items()
        }
        self._scratch = max(engine.memory for engine in self._engines.values())
        self._cache = KernelCache(package)

    @property
    def limits(self) -> Limits:
        """The limits on batches, which the profiles set."""
        profiles = self._built.profiles
        return Limits(
            rows=max(p.batch.largest for p in profiles),
            source=max(p.source.largest for p in profiles),
        )

    def rows_that_fit(self, source: int) -> int:
        """Return the number of rows with sources of this length that fit into memory now.

        The number is a power of two, as batches are rounded up to one, and at least 1, since a row
        may still fit. The same amount of memory is left for joining batches, which start in their
        own workspace.
        """
        sizes = sizes_for(self._built.profiles, 1, source)
        each = row_bytes(self.manifest, sizes) + 8 * self.manifest.model.max_target_positions
        with self._lock:
            idle = sorted(workspace.arena.size for workspace in self._free)[-2:]
        free = self._device.free_memory() + sum(idle) - 2 * self._scratch
        room = int(MEMORY_SHARE * free) // (2 * each)
        most = max(1, min(room, max(p.batch.largest for p in self._built.profiles)))
        return power_of_two(most + 1) // 2

    def close(self) -> None:
        """Free unused workspaces and save compiled kernels."""
        self._cache.save()
        self._engines = {}
        super().close()

    def _new_workspace(self) -> EngineWorkspace:
        workspace = EngineWorkspace(
            *(self._device, self._preparing, self.manifest, self._package),
            *(self._engines, self._cache, self._scratch),
        )
        workspace.widest = max(p.batch.largest for p in self._built.profiles)
        return workspace


def open_backend(bundle: Bundle, threads: int | None) -> TensorRTBackend:
    """Open the backend.

    Args:
        threads: number of CPU threads, which is ignored

    Raises:
        BackendError: there is no GPU, the package is missing or of another version, or the engines
            are not for this GPU.
    """
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package = usable_package(bundle, engines)
    return TensorRTBackend(bundle, engines, package, Device())
