"""Bundles by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman.errors import DragomanError

from .engine.observer import Observer
from .host import Host
from .options import ServerOptions

logger = logging.getLogger("dragoman.serving")


class UnknownModelError(DragomanError):
    """No bundle of that name is served."""


class Hosts:
    """All bundles that a server has, by name.

    Args:
        directories: of bundles, by name; not none

    Raises:
        BundleError: one of them is no bundle.
    """

    def __init__(
        self,
        directories: dict[str, Path],
        options: ServerOptions,
        observer_of: Callable[[str], Observer],
    ) -> None:
        self._options = options
        self._hosts = {
            name: Host(name, directory, options.engine, observer_of)
            for name, directory in directories.items()
        }

    @property
    def all(self) -> Sequence[Host]:
        return list(self._hosts.values())

    def get(self, name: str | None = None) -> Host:
        """The one of a name; None: the only one.

        Raises:
            UnknownModelError: there is none, or it takes a name to choose.
        """
        known = ", ".join(sorted(self._hosts))
        if name is None:
            if len(self._hosts) > 1:
                raise UnknownModelError(f"model: expected one of {known}, found none")
            return next(iter(self._hosts.values()))
        if name not in self._hosts:
            raise UnknownModelError(f"model: expected one of {known}, found {name!r:.80}")
        return self._hosts[name]

    async def watch(self) -> None:
        """Replace and unload as time goes by, until cancelled."""
        await asyncio.gather(*map(self._watch, self.all))

    async def _watch(self, host: Host) -> None:
        while True:
            await asyncio.sleep(self._options.watch_seconds)
            try:
                await host.refresh()
            except Exception as error:  # such as too little memory for two: the next may succeed
                logger.error("not replaced", exc_info=error, extra={"model": host.name})
            if self._options.idle_unload is not None:
                host.unload_if_idle(self._options.idle_unload)

    async def close(self) -> None:
        for host in self.all:
            await host.close()


def names_of(directories: Sequence[Path]) -> dict[str, Path]:
    """A name for each bundle: that of its directory.

    Raises:
        DragomanError: two have the same.
    """
    names: dict[str, Path] = {}
    for directory in directories:
        name = directory.resolve().name
        if name in names:
            raise DragomanError(
                f"expected bundles of different names, found {names[name]} and {directory}"
            )
        names[name] = directory
    return names
