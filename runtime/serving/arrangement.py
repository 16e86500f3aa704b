"""How many workers of how many threads run a bundle.

That is what the user says, else what `dragoman bench --arrangement` measured on this machine, else
a worker for each core.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import DragomanError
from dragoman.files.regular_files import write_whole
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..backends import check_threads
from ..format.manifest import Manifest


class Arrangement(NamedTuple):
    """How a model is run.

    Attributes:
        workers: decoding loops, each with a batch of its own, over one copy of the weights
        threads: threads of each worker
        batch_size: the most rows in the batch of a worker: requests times beams
    """

    workers: int
    threads: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.threads}, {self.batch_size} rows"


def usable_cores() -> int:
    """Count the cores that this process may use."""
    of_process = getattr(os, "sched_getaffinity", None)
    return len(of_process(0)) if of_process else os.cpu_count() or 1


def arrangement(
    manifest: Manifest, *, workers: int | None, threads: int | None, batch_size: int | None
) -> Arrangement:
    """Choose an arrangement for a bundle.

    By default each core has a worker of one thread, which never waits for other threads.

    Args:
        workers, threads: None, both of them: as `dragoman bench --arrangement` found best on this
            machine, if it was run; None, one of them: what fills the cores

    Raises:
        DragomanError: there would be too many threads.
    """
    known = recall(manifest) if workers is None and threads is None else None
    if known is not None:
        return known if batch_size is None else known._replace(batch_size=batch_size)
    cores = usable_cores()
    if workers is None:
        workers = max(1, cores // (threads or 1))
    if threads is None:
        threads = max(1, cores // workers)
    check_threads(workers * threads)
    return Arrangement(workers, threads, batch_size or DEFAULT_BATCH_SIZE)


def remember(manifest: Manifest, best: Arrangement) -> str | None:
    """Keep the best arrangement of a bundle on this machine, for `arrangement`.

    Returns:
        a warning if it cannot be written
    """
    try:
        write_whole(_file(manifest), lambda path: path.write_text(json.dumps(best), "ascii"))
    except DragomanError as error:
        return f"not kept for dragoman serve: {error}"
    return None


def recall(manifest: Manifest) -> Arrangement | None:
    """Return the arrangement that `remember` has kept; None: there is no valid one."""
    with suppress(OSError, ValueError, TypeError, DragomanError):
        found = json.loads(_file(manifest).read_text("ascii"))
        known = Arrangement(*found)
        if all(type(n) is int and n >= 1 for n in known):
            check_threads(known.workers * known.threads)
            return known
    return None


def _file(manifest: Manifest) -> Path:
    """In XDG_CACHE_HOME or ~/.cache, named by the bundle's files, the machine and its cores."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    of = [platform.node(), usable_cores(), *sorted(record.sha256 for record in manifest.files)]
    name = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:24]
    return Path(root) / "dragoman" / "arrangements" / f"{name}.json"
