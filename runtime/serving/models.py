"""The models of a server: loaded on demand, unloaded when idle, replaced when changed.

All methods run on the event loop; loading and closing run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from dragoman.errors import DragomanError, shown

from ..backends import import_backend
from ..backends.interface import DeviceLostError, Steps
from ..decoding.scheduler import Observer
from ..format.bundle import read_bundle
from ..format.manifest import MANIFEST_FILE, Manifest
from ..model import Model
from .arrangement import load_arranged
from .engine.encoder_engine import AnyEngine, EncoderEngine, open_engine
from .engine.engine import DecodingEngine
from .options import EngineOptions, ServerOptions

logger = logging.getLogger("dragoman.serving")

EngineType = TypeVar("EngineType", DecodingEngine, EncoderEngine)
FileIdentity = tuple[int, int, int]
"""Inode, time of modification and size of a manifest. Another bundle has another identity."""


class UnknownModelError(DragomanError):
    """The server has no model of this name."""

    status, code = 404, "unknown_model"


class UnavailableError(DragomanError):
    """A model cannot be loaded."""

    status, code = 503, "unavailable"


class _LoadedEngine:
    """An engine that is closed when it is retired and its last user has released it."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.users, self.last_used, self._retired = 0, time.monotonic(), False
        self._is_closing = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def release(self) -> None:
        self.users -= 1
        self.last_used = time.monotonic()
        self._close_if_unused()

    def retire(self) -> None:
        self._retired = True
        self._close_if_unused()

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def wait_closed(self) -> None:
        while self._closing is None:
            await self._is_closing.wait()
        await self._closing

    def _close_if_unused(self) -> None:
        if self._retired and not self.users and self._closing is None:
            self._closing = asyncio.ensure_future(asyncio.to_thread(self.engine.close))
            self._is_closing.set()


class ServedModel:
    """The directory of a bundle, and its engine while it is loaded.

    Attributes:
        manifest: manifest of the engine; without an engine, of the newest readable version
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        options: EngineOptions,
        observer_of: Callable[[str], Observer],
        share: float = 1.0,
    ) -> None:
        self.name, self.directory = name, directory
        self._options, self._observer_of, self._share = options, observer_of, share
        self._identity = _identity(directory)
        """The version that `manifest` belongs to."""
        bundle = read_bundle(directory, remembered=True)
        for device in options.devices or (None,):  # a missing library is found before the start
            import_backend(bundle, options.backend, device)
        self.manifest: Manifest = bundle.manifest
        self._current: _LoadedEngine | None = None
        self._retired: list[_LoadedEngine] = []
        self._earlier_steps: list[Steps] = []
        """The decoding steps of versions that are closed."""
        self._changing = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._refused: FileIdentity | None = None
        """The last version that could not be loaded."""
        self._device_lost = False
        """Whether the device is lost, so that this process cannot load the model again."""

    @property
    def loaded(self) -> bool:
        """Whether the model is in memory."""
        return self._current is not None

    @property
    def alive(self) -> bool:
        """Whether the model can serve requests on all its devices."""
        if self._device_lost:
            return False
        return self._current is None or self._current.engine.alive

    @property
    def waiting(self) -> int:
        """The number of outputs that wait to be decoded."""
        return 0 if self._current is None else len(self._current.engine.queue)

    @property
    def _versions(self) -> list[_LoadedEngine]:
        return [*self._retired, *([self._current] if self._current else [])]

    @property
    def rows(self) -> int:
        """The number of rows being decoded, in all versions."""
        return sum(version.engine.rows for version in self._versions)

    @property
    def steps(self) -> Steps | None:
        """The decoding steps on GPUs, of all versions; None: there were none."""
        counts = [*self._earlier_steps, *(n for v in self._versions for n in v.engine.steps)]
        return Steps(*map(sum, zip(*counts, strict=True))) if counts else None

    @asynccontextmanager
    async def engine(self, kind: type[EngineType]) -> AsyncIterator[EngineType]:
        """Load the engine if necessary, and keep it open within the context.

        Raises:
            UnavailableError: the engine cannot be loaded, or is no longer of this kind.
        """
        async with self._acquired() as engine:
            if not isinstance(engine, kind):
                raise UnavailableError(f"{self.name} was replaced by a model of another kind")
            yield engine

    @asynccontextmanager
    async def model(self) -> AsyncIterator[Model]:
        """Load the model if necessary, and keep it open within the context."""
        async with self._acquired() as engine:
            yield engine.model

    async def load(self) -> _LoadedEngine:
        """Load the engine if necessary, once for all callers, even if the first is cancelled."""
        while self._current is None:
            if self._loading is None:
                self._loading = asyncio.ensure_future(self._load())
                self._loading.add_done_callback(self._loading_done)
            await asyncio.shield(self._loading)
        return self._current

    async def refresh(self) -> None:
        """Replace the engine and manifest if the directory holds another bundle.

        Both stay as they are if that cannot be loaded.
        """
        identity = _identity(self.directory)
        if identity in (None, self._identity, self._refused):
            return
        async with self._changing:
            try:
                if self._current is None:
                    bundle = await asyncio.to_thread(read_bundle, self.directory)
                    self.manifest, self._identity = bundle.manifest, identity
                    return
                fresh = await asyncio.to_thread(self._open)
            except DragomanError as error:
                self._refused = identity
                logger.error("replacement refused", extra={"model": self.name, "error": str(error)})
                return
            self._retire()
            self._install(fresh, identity)
        logger.info("replaced", extra={"model": self.name})

    def unload_if_idle(self, seconds: float) -> None:
        """Unload the engine if it has been unused for this long."""
        current = self._current
        if current and not current.users and time.monotonic() - current.last_used >= seconds:
            self.unload()

    def unload(self) -> None:
        """Close the engine once unused; the next request loads it again."""
        if self._current is not None:
            self._retire()
            logger.info("unloaded", extra={"model": self.name})

    async def close(self) -> None:
        """Unload the engine, and wait until all versions are closed."""
        async with self._changing:
            self.unload()
        for version in self._retired:
            await version.wait_closed()

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator[AnyEngine]:
        current = await self.load()
        current.users += 1
        try:
            yield current.engine
        finally:
            current.release()

    def _loading_done(self, loading: asyncio.Task[None]) -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # mark as retrieved: all waiting callers may be cancelled

    async def _load(self) -> None:
        async with self._changing:
            if self._current is not None:
                return
            start, identity = time.monotonic(), _identity(self.directory)
            try:
                self._install(await asyncio.to_thread(self._open), identity)
            except DragomanError as error:
                self._device_lost |= isinstance(error, DeviceLostError)
                raise UnavailableError(f"{self.name} cannot be loaded: {error}") from error
            seconds = round(time.monotonic() - start, 3)
            logger.info("loaded", extra={"model": self.name, "seconds": seconds})

    def _install(self, fresh: _LoadedEngine, identity: FileIdentity | None) -> None:
        self._current, self._identity = fresh, identity
        self.manifest = fresh.engine.model.manifest

    def _open(self) -> _LoadedEngine:
        options = self._options
        models, chosen = load_arranged(read_bundle(self.directory, remembered=True), options)
        engine = open_engine(
            *models,
            workers=chosen.workers,
            batch_size=chosen.batch_size,
            max_waiting=options.max_waiting,
            max_new_tokens=options.max_new_tokens,
            share=self._share,
            observer=self._observer_of(self.name),
        )
        return _LoadedEngine(engine)

    def _retire(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            self._device_lost |= not current.engine.alive
            closed = [version for version in self._retired if version.is_closed]
            self._earlier_steps += (count for version in closed for count in version.engine.steps)
            self._retired = [*(r for r in self._retired if r not in closed), current]
            current.retire()


class ModelRegistry:
    """All models of a server."""

    def __init__(
        self,
        directories: dict[str, Path],
        options: ServerOptions,
        observer_of: Callable[[str], Observer],
    ) -> None:
        self._options = options
        self._models = {
            name: ServedModel(name, directory, options.engine, observer_of, 1 / len(directories))
            for name, directory in directories.items()
        }

    @property
    def all(self) -> Sequence[ServedModel]:
        """All models, in their given order."""
        return list(self._models.values())

    @property
    def alive(self) -> bool:
        """Whether every model can serve requests."""
        return all(model.alive for model in self.all)

    def get(self, name: str | None = None) -> ServedModel:
        """Return a model by name; None: the only model.

        Raises:
            UnknownModelError: there is no such model, or several and no name.
        """
        if name is None and len(self._models) == 1:
            return self.all[0]
        if name is None or name not in self._models:
            known, found = ", ".join(sorted(self._models)), "none" if name is None else shown(name)
            raise UnknownModelError(f"model: expected one of {known}, found {found}")
        return self._models[name]

    async def watch(self) -> None:
        """Replace changed models and unload idle ones, until cancelled."""
        await asyncio.gather(*map(self._watch, self.all))

    async def _watch(self, model: ServedModel) -> None:
        while True:
            await asyncio.sleep(self._options.watch_seconds)
            try:
                await model.refresh()
            except Exception as error:  # such as too little memory; the next attempt may succeed
                logger.error("not replaced", exc_info=error, extra={"model": model.name})
            if self._options.idle_unload is not None:
                model.unload_if_idle(self._options.idle_unload)

    async def close(self) -> None:
        """Close all models."""
        for model in self.all:
            await model.close()


def _identity(directory: Path) -> FileIdentity | None:
    """Return the identity of the bundle in a directory, if any.

    A directory that may not be searched stands for its bundle.
    """
    for path in (directory / MANIFEST_FILE, directory):
        try:
            status = path.stat()
        except PermissionError:
            continue
        except OSError:
            break
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None
