"""A bundle's directory and its engine: loaded when it is needed, unloaded when it is not, replaced
when the directory changes. Everything here runs on the event loop; what takes time, in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dragoman.errors import DragomanError

from ..format.bundle import read_bundle
from ..format.manifest import MANIFEST_FILE, Manifest
from ..loading import load
from ..model import Model
from .arrangement import arrangement
from .engine.engine import Engine, threads_of
from .engine.observer import Observer
from .engine.texts import TextsEngine
from .options import EngineOptions

logger = logging.getLogger("dragoman.serving")

AnyEngine = Engine | TextsEngine
Kind = TypeVar("Kind", Engine, TextsEngine)
Identity = tuple[int, int, int]
"""Of a file: another one has another."""


class UnavailableError(DragomanError):
    """A bundle cannot be loaded."""


class _Hosted:
    """An engine, and how many requests use it. It is closed when it is retired and none does."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.users, self.last_used, self._retired = 0, time.monotonic(), False
        self._left = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        self.last_used = time.monotonic()
        self._close_if_done()

    def retire(self) -> None:
        self._retired = True
        self._close_if_done()

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    async def wait_closed(self) -> None:
        """Until its last user has left, and it is closed."""
        while self._closing is None:
            await self._left.wait()
        await self._closing

    def _close_if_done(self) -> None:
        if self._retired and not self.users and self._closing is None:
            self._closing = asyncio.ensure_future(asyncio.to_thread(self.engine.close))
            self._left.set()


class Host:
    """A bundle's directory, and its engine while it is loaded.

    Args:
        observer_of: who watches the engine of a name
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        options: EngineOptions,
        observer_of: Callable[[str], Observer],
    ) -> None:
        self.name, self.directory = name, directory
        self._options, self._observer_of = options, observer_of
        self._identity = _identity(directory)
        """Of the version whose manifest this is."""
        self.manifest: Manifest = read_bundle(directory).manifest
        """Of the engine; while there is none, of the newest version that could be read."""
        self._hosted: _Hosted | None = None
        self._retired: list[_Hosted] = []
        self._changing = asyncio.Lock()
        self._loading: asyncio.Task[None] | None = None
        self._refused: Identity | None = None
        """A version that could not be loaded."""

    @property
    def loaded(self) -> bool:
        return self._hosted is not None

    @property
    def alive(self) -> bool:
        """Whether it answers, or would once it is loaded."""
        return self._hosted is None or self._hosted.engine.alive

    @property
    def waiting(self) -> int:
        """Outputs that wait to be decoded."""
        return 0 if self._hosted is None else len(self._hosted.engine.line)

    @property
    def rows(self) -> int:
        """Rows that are being decoded, in versions that are replaced too."""
        versions = [*self._retired, *([self._hosted] if self._hosted else [])]
        return sum(version.engine.rows for version in versions)

    @asynccontextmanager
    async def engine(self, kind: type[Kind]) -> AsyncIterator[Kind]:
        """The engine, loaded if it is not; it stays as long as the context lasts, whatever happens
        to the directory.

        Raises:
            UnavailableError: it cannot be loaded, or it is of another kind than it was.
        """
        async with self._used() as engine:
            if not isinstance(engine, kind):
                raise UnavailableError(f"{self.name} was replaced by a model of another kind")
            yield engine

    @asynccontextmanager
    async def model(self) -> AsyncIterator[Model]:
        """The model alone, likewise.

        Raises:
            UnavailableError: it cannot be loaded.
        """
        async with self._used() as engine:
            yield engine.model

    async def load(self) -> None:
        """
        Raises:
            UnavailableError: it cannot be loaded.
        """
        await self._loaded()

    async def refresh(self) -> None:
        """Replace the engine, if there is one, and the manifest if the directory holds another
        bundle than they are of. If that cannot be loaded, things stay as they are.
        """
        identity = _identity(self.directory)
        if identity in (None, self._identity, self._refused):
            return
        async with self._changing:
            try:
                if self._hosted is None:
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
        hosted = self._hosted
        if hosted and not hosted.users and time.monotonic() - hosted.last_used >= seconds:
            self.unload()

    def unload(self) -> None:
        """Free what it holds once nobody uses it; the next request loads it again."""
        if self._hosted is not None:
            self._retire()
            logger.info("unloaded", extra={"model": self.name})

    async def close(self) -> None:
        async with self._changing:
            self.unload()
        for hosted in self._retired:
            await hosted.wait_closed()

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[AnyEngine]:
        hosted = await self._loaded()
        hosted.enter()
        try:
            yield hosted.engine
        finally:
            hosted.leave()

    async def _loaded(self) -> _Hosted:
        """Whoever waits may go: it is loaded all the same, once, for those that come next."""
        while self._hosted is None:
            if self._loading is None:
                self._loading = asyncio.ensure_future(self._load())
                self._loading.add_done_callback(self._has_loaded)
            await asyncio.shield(self._loading)
        return self._hosted

    def _has_loaded(self, loading: asyncio.Task[None]) -> None:
        self._loading = None
        if not loading.cancelled():
            loading.exception()  # nobody may be waiting for it any more

    async def _load(self) -> None:
        async with self._changing:
            if self._hosted is not None:
                return
            started, identity = time.monotonic(), _identity(self.directory)
            try:
                self._install(await asyncio.to_thread(self._open), identity)
            except DragomanError as error:
                raise UnavailableError(f"{self.name} cannot be loaded: {error}") from error
            seconds = round(time.monotonic() - started, 3)
            logger.info("loaded", extra={"model": self.name, "seconds": seconds})

    def _install(self, hosted: _Hosted, identity: Identity | None) -> None:
        self._hosted, self._identity = hosted, identity
        self.manifest = hosted.engine.model.manifest

    def _open(self) -> _Hosted:
        options, bundle = self._options, read_bundle(self.directory)
        chosen = arrangement(
            bundle.manifest, loops=options.loops, threads=options.threads, rows=options.rows
        )
        threads = threads_of(chosen.loops, chosen.threads)
        model = load(bundle, threads=threads, backend=options.backend)
        observer = self._observer_of(self.name)
        if model.manifest.head is not None:
            texts = TextsEngine(
                model,
                loops=chosen.loops,
                rows=chosen.rows,
                waiting=options.waiting,
                observer=observer,
            )
            return _Hosted(texts)
        engine = Engine(
            model,
            loops=chosen.loops,
            rows=chosen.rows,
            waiting=options.waiting,
            max_new_tokens=options.max_new_tokens,
            observer=observer,
        )
        return _Hosted(engine)

    def _retire(self) -> None:
        hosted, self._hosted = self._hosted, None
        if hosted is not None:
            self._retired = [*(r for r in self._retired if not r.is_closed), hosted]
            hosted.retire()


def _identity(directory: Path) -> Identity | None:
    """Of the bundle in a directory; None: there is none at the moment."""
    with suppress(OSError):
        status = (directory / MANIFEST_FILE).stat()
        return status.st_ino, status.st_mtime_ns, status.st_size
    return None
