"""A tool as a server: Dragoman's own, or another over the same HTTP layer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..harness import Contender, ContenderError, Perform
from ..throughput.work import Arrangement

Kind = Literal["dragoman", "ctranslate2", "hugging-face", "faster-whisper"]


@dataclass(frozen=True)
class ServedTool(Contender[None, None]):
    """
    Attributes:
        kind: of server
        compute_type: of CTranslate2 and faster-whisper
        batches: the most requests in a batch, of which it gets the best
    """

    kind: Kind = "dragoman"
    compute_type: str = ""
    batches: tuple[int, ...] = (64,)

    @property
    def peer(self) -> bool:
        return self.kind != "dragoman"

    @property
    def fp32(self) -> bool:
        return self.name.endswith(("fp32", "float32"))

    def arrangements(self, cores: int) -> list[Arrangement]:
        """One worker with all cores, and a worker for each; Hugging Face's models share one pool of
        threads, and have one worker.
        """
        workers = (1,) if self.kind == "hugging-face" else tuple(sorted({cores, 1}, reverse=True))
        return [Arrangement(n, cores // n, batch) for n in workers for batch in self.batches]

    def command(self, directory: Path, arrangement: Arrangement) -> list[str]:
        workers, threads, batch = map(str, arrangement)
        common = ["--workers", workers, "--threads", threads, "--batch-size", batch, "--port", "0"]
        if self.kind == "dragoman":
            waiting = ["--max-waiting", "100000"]
            return [sys.executable, "-m", "dragoman", "serve", str(directory), *common, *waiting]
        module = "dragoman.benchmarks.serving.peer_server"
        options = ["--compute-type", self.compute_type] if self.compute_type else []
        return [sys.executable, "-m", module, self.kind, str(directory), *options, *common]


def served_tool(
    name: str,
    prepare: Callable[[Path, Path], Path],
    *,
    kind: Kind = "dragoman",
    compute_type: str = "",
    batches: tuple[int, ...] = (64,),
) -> ServedTool:
    """
    Args:
        prepare: see `Contender`
    """
    return ServedTool(
        name, prepare, _not_called, kind=kind, compute_type=compute_type, batches=batches
    )


@contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A server as a process of its own: its URL, and the number of the process, which ends with the
    context.

    Raises:
        ContenderError: it does not start.
    """
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield _url(server), server.pid
        finally:
            server.kill()


def _url(server: subprocess.Popen[str]) -> str:
    last = ""
    for line in server.stderr or ():
        last = line.strip() or last
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "listening":
            _let_go(server)
            return str(event["url"])
    raise ContenderError(f"its server did not start: {last:.300}")


def _let_go(server: subprocess.Popen[str]) -> None:
    """Read what else it logs, so that it is never held up."""
    from threading import Thread

    Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()


def _not_called(directory: Path, threads: int) -> Perform[None, None]:
    raise NotImplementedError("a server loads it")
