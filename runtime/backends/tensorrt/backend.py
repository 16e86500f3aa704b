"""TensorRT-RTX or TensorRT, running a bundle's engines. See `interface.Backend`.

Sizes of batches are rounded up, so that later batches reuse what one has prepared.
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
"""Lengths of sources are rounded up to multiples of this."""


class ProfileRounding:
    """The `layout.Rounding` to sizes within the profiles of a bundle's engines."""

    def __init__(self, engines: TensorRTEngines) -> None:
        self._engines = engines

    def first(self, sources: int, source: int, capacity: int, width: int) -> Sizes:
        """Return the sizes of a new batch, or of one that others join."""
        if capacity > self._engines.capacity:
            raise BackendError(
                f"the engines hold {self._engines.capacity} target positions: found {capacity}"
            )
        return sizes_for(self._engines.profiles, sources, source, width)

    def after(self, present: Sizes, sources: int) -> Sizes:
        """Return the sizes of a batch with this many sources left."""
        return sizes_after(self._engines.profiles, present, sources)


def sizes_for(profiles: Sequence[Profile], sources: int, source: int, width: int = 1) -> Sizes:
    """Round sources up to a power of two, and their length to a multiple of `SOURCE_STEP`.

    The profile is the one for the smallest batches that fits.

    Raises:
        BackendError: none fits; says what the limits are.
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
    """Return the sizes of a batch with this many sources left; their length stays."""
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
    """Return whether a multiple of the width within the range has room for the rows."""
    return max(sources, -(-batch.smallest // width)) * width <= batch.largest


def _rounded(sources: int, batch: Range, width: int) -> int:
    """Round sources that fit, so that their rows are within the range."""
    smallest, largest = -(-batch.smallest // width), batch.largest // width
    return min(max(power_of_two(sources), smallest), largest)


MEMORY_SHARE = 0.9
"""The share of free memory that a batch may use."""


class TensorRTBackend(DeviceBackend):
    """The backend of a bundle's engines on one device; later batches reuse a batch's workspace."""

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
        """Return how many rows with sources of this many tokens the device has memory for now.

        It is a power of two, because batches are rounded up to one, and at least 1, because
        starting a row shows whether it fits. As much memory again is left for batches that join,
        which are started in a workspace of their own.
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
        """Free everything that is not in use, and save compiled kernels."""
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
        threads: processor threads, which are not used

    Raises:
        BackendError: there is no GPU, the package is missing or of another version, or the engines
            are not for this GPU.
    """
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package = usable_package(bundle, engines)
    return TensorRTBackend(bundle, engines, package, Device())
