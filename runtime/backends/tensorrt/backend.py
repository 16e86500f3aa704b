"""The backend of TensorRT-RTX and TensorRT. See `interface.Backend`.

Sizes of batches are rounded up, so that batches reuse execution contexts and captured graphs.
"""

import weakref
from collections.abc import Iterator, Sequence

from ...format.bundle import Bundle
from ...format.manifest import Profile, Range, TensorRTEngines
from ..cuda import Device
from ..cuda.backend import DeviceBackend
from ..cuda.layout import SOURCE_STEP, Sizes, rounded_up
from ..cuda.workspace import Stream
from ..interface import BackendError, Limits
from .engines import LoadedEngine, load_engine, usable_package
from .packages import Package
from .workspace import CONTEXT_MEMORY, MOST_GRAPHS, EngineWorkspace, KernelCache


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
    """Round sources and their length up, within the smallest profile that fits."""
    for index, lengths, rounded in _fitting(profiles, sources, width):
        if source <= lengths.largest:
            padded = max(rounded_up(source, SOURCE_STEP), lengths.smallest)
            return Sizes(index, rounded, min(padded, lengths.largest), width=width)
    known = "; ".join(f"{p.batch.largest} rows of {p.source.largest} tokens" for p in profiles)
    raise BackendError(
        f"the engines take batches of at most {known}: found {sources * width} rows of {source} "
        "tokens"
    )


def sizes_after(profiles: Sequence[Profile], present: Sizes, sources: int) -> Sizes:
    """Return the sizes of a batch with this number of remaining sources; their length stays."""
    for index, lengths, rounded in _fitting(profiles, sources, present.width):
        if lengths.smallest <= present.source <= lengths.largest:
            return present._replace(profile=index, sources=rounded)
    return present


def _fitting(
    profiles: Sequence[Profile], sources: int, width: int
) -> Iterator[tuple[int, Range, int]]:
    """Yield the profiles whose batches have room for sources, the smallest batches first.

    Yields:
        the profile's index, its lengths of sources, and the number of sources, rounded up
    """
    for index in sorted(range(len(profiles)), key=lambda i: profiles[i].batch.largest):
        batch = profiles[index].batch
        smallest, largest = -(-batch.smallest // width), batch.largest // width
        if max(sources, smallest) <= largest:
            yield index, profiles[index].source, min(max(rounded_up(sources), smallest), largest)


class TensorRTBackend(DeviceBackend[Stream]):
    """The backend for a bundle's engines on one device."""

    def __init__(
        self, bundle: Bundle, engines: TensorRTEngines, package: Package, device: Device
    ) -> None:
        device.enter()  # TensorRT loads engines onto the current device
        loaded = {
            name: load_engine(package, bundle, graph.file)
            for name, graph in bundle.manifest.graphs.items()
        }
        self._engine_scratch = max(engine.memory for engine in loaded.values())
        contexts = MOST_GRAPHS + len(loaded) * len(engines.profiles)
        scratch = self._engine_scratch + contexts * CONTEXT_MEMORY
        super().__init__(bundle.manifest, device, ProfileRounding(engines), scratch=scratch)
        self._built, self._package = engines, package
        self._engines: dict[str, LoadedEngine] = loaded
        self._cache = KernelCache(package, device)
        # On close, or when nothing refers to the backend any more, or at exit.
        self._save_kernels = weakref.finalize(self, self._cache.save)

    @property
    def limits(self) -> Limits:
        """The limits on batches, which the profiles set."""
        longest = max(profile.source.largest for profile in self._built.profiles)
        return Limits(rows=self._built.rows, source=longest)

    def close(self) -> None:
        """Free unused workspaces and save compiled kernels."""
        self._save_kernels()
        super().close()
        self._engines = {}

    def _new_stream(self) -> Stream:
        return Stream(self.device)

    def _new_workspace(self, stream: Stream) -> EngineWorkspace:
        workspace = EngineWorkspace(
            *(stream, self._counter, self.manifest, self._package),
            *(self._engines, self._cache, self._engine_scratch),
        )
        workspace.widest = max(p.batch.largest for p in self._built.profiles)
        return workspace


def open_backend(bundle: Bundle, threads: int | None, gpu: int) -> TensorRTBackend:
    """Open the backend, or raise a BackendError if its package or engines do not run here."""
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        raise BackendError(f"{bundle.directory}: expected engines, found graphs")
    package = usable_package(bundle, engines, gpu)
    return TensorRTBackend(bundle, engines, package, Device(gpu))
