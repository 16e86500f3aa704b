"""Selects the workers and threads that run a bundle."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import DragomanError
from dragoman.files.regular_files import NO_HOME, user_cache, write_whole
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..backends import check_backend, check_threads
from ..format.bundle import Bundle
from ..format.manifest import Manifest
from ..loading import load
from ..model import Model
from .engine.engine import threads_of
from .options import EngineOptions


class Arrangement(NamedTuple):
    """The workers and threads that run a model."""

    workers: int
    """Decoding loops of a device, each with its own batch."""
    threads: int
    """Processor threads per worker."""
    batch_size: int | None
    """Maximum rows in a worker's batch; a request has a row per beam. None: as many as fit into the
    memory of a GPU."""

    def __str__(self) -> str:
        rows = "" if self.batch_size is None else f", {self.batch_size} rows"
        return f"{self.workers} x {self.threads}{rows}"


def usable_cores() -> int:
    """Count the cores that this process may use."""
    of_process = getattr(os, "sched_getaffinity", None)
    return len(of_process(0)) if of_process else os.cpu_count() or 1


def arrangement(
    manifest: Manifest,
    *,
    workers: int | None,
    threads: int | None,
    batch_size: int | None,
    on_gpu: bool = False,
) -> Arrangement:
    """Select the arrangement of a bundle.

    By default, each core has a worker of one thread, which never waits for others. A GPU has one
    worker: a step of many rows takes hardly longer than one of few, and with ONNX Runtime, each
    worker has a copy of the weights.

    Args:
        workers, threads: without both, the best that `dragoman bench --arrangement` measured on
            this machine, if any; without one, it is chosen to use all cores

    Raises:
        DragomanError: the total number of threads is too large.
    """
    known = recall(manifest, on_gpu=on_gpu) if workers is None and threads is None else None
    if known is not None:
        return known if batch_size is None else known._replace(batch_size=batch_size)
    cores = 1 if on_gpu else usable_cores()
    workers = workers or max(1, cores // (threads or 1))
    threads = threads or max(1, cores // workers)
    check_threads(workers * threads)
    return Arrangement(workers, threads, batch_size or (None if on_gpu else DEFAULT_BATCH_SIZE))


def load_arranged(bundle: Bundle, options: EngineOptions) -> tuple[tuple[Model, ...], Arrangement]:
    """Load a bundle for its arrangement, once for each device."""
    devices = options.devices or (None,)
    chosen = arrangement(
        bundle.manifest,
        workers=options.workers,
        threads=options.threads,
        batch_size=options.batch_size,
        on_gpu=check_backend(bundle, options.backend, devices[0]).device == "cuda",
    )
    with ExitStack() as loaded:
        models = tuple(
            loaded.enter_context(
                load(
                    bundle,
                    threads=threads_of(chosen.workers, chosen.threads),
                    backend=options.backend,
                    device=device,
                    check=options.check,
                    allow_fallback=options.allow_fallback,
                )
            )
            for device in devices
        )
        loaded.pop_all()  # all are loaded, and stay so
    return models, chosen


def remember(manifest: Manifest, best: Arrangement, *, on_gpu: bool = False) -> str | None:
    """Save the best arrangement of a bundle on this machine; return a warning on failure."""
    file = _file(manifest, on_gpu)
    if file is None:
        return f"not kept for dragoman serve: {NO_HOME}"
    try:
        write_whole(file, lambda path: path.write_text(json.dumps(best), "ascii"))
    except DragomanError as error:
        return f"not kept for dragoman serve: {error}"
    return None


def recall(manifest: Manifest, *, on_gpu: bool = False) -> Arrangement | None:
    """Return the arrangement saved by `remember`, if valid."""
    file = _file(manifest, on_gpu)
    if file is None:
        return None
    with suppress(OSError, ValueError, TypeError, DragomanError):
        found = json.loads(file.read_text("ascii"))
        known = Arrangement(*found)
        if all(type(n) is int and n >= 1 for n in known):
            check_threads(known.workers * known.threads)
            return known
    return None


def _file(manifest: Manifest, on_gpu: bool) -> Path | None:
    of = [platform.node(), usable_cores(), *sorted(record.sha256 for record in manifest.files)]
    if on_gpu:
        of.append("cuda")
    name = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:24]
    return user_cache("arrangements", f"{name}.json")
