"""How many loops of how many threads run a bundle: as asked, as measured on this machine, or a loop
for each core.
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
from dragoman.whole_files import write_whole

from ..backends import check_threads
from ..decoding.options import DEFAULT_BATCH_SIZE
from ..format.manifest import Manifest


class Arrangement(NamedTuple):
    """
    Attributes:
        loops: batches that are decoded beside each other, over one copy of the weights
        threads: of each loop
        rows: the most in the batch of a loop
    """

    loops: int
    threads: int
    rows: int

    def __str__(self) -> str:
        return f"{self.loops} x {self.threads}, {self.rows} rows"


def usable_cores() -> int:
    """Those that this process may use."""
    of_process = getattr(os, "sched_getaffinity", None)
    return len(of_process(0)) if of_process else os.cpu_count() or 1


def arrangement(
    manifest: Manifest, *, loops: int | None, threads: int | None, rows: int | None
) -> Arrangement:
    """What is asked for; None: as `dragoman bench --arrangement` found best for this bundle, if it
    was run and neither loops nor threads are asked for; else what fills the cores. A loop for each
    core is the default, since its one thread never waits for others.

    Raises:
        DragomanError: more threads in all than make sense.
    """
    known = recall(manifest) if loops is None and threads is None else None
    if known is not None:
        return known if rows is None else known._replace(rows=rows)
    cores = usable_cores()
    if loops is None:
        loops = max(1, cores // (threads or 1))
    if threads is None:
        threads = max(1, cores // loops)
    check_threads(loops * threads)
    return Arrangement(loops, threads, rows or DEFAULT_BATCH_SIZE)


def remember(manifest: Manifest, best: Arrangement) -> str | None:
    """Let `arrangement` choose this for a bundle on this machine.

    Returns:
        a warning if it cannot be written
    """
    try:
        write_whole(_file(manifest), lambda path: path.write_text(json.dumps(best), "ascii"))
    except DragomanError as error:
        return f"not kept for dragoman serve: {error}"
    return None


def recall(manifest: Manifest) -> Arrangement | None:
    """What was remembered; None: nothing, or nothing that makes sense."""
    with suppress(OSError, ValueError, TypeError, DragomanError):
        found = json.loads(_file(manifest).read_text("ascii"))
        known = Arrangement(*found)
        if all(type(n) is int and n >= 1 for n in known):
            check_threads(known.loops * known.threads)
            return known
    return None


def _file(manifest: Manifest) -> Path:
    """Under XDG_CACHE_HOME, else ~/.cache: by the bundle's files, the machine and its cores."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    of = [platform.node(), usable_cores(), *sorted(record.sha256 for record in manifest.files)]
    name = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:24]
    return Path(root) / "dragoman" / "arrangements" / f"{name}.json"
