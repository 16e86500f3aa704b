"""The tools, each as a server: Dragoman's own, and others over the same HTTP layer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ..harness import Contender, ContenderError, Perform
from ..models.bundles import Calibration
from ..text.contenders import BUNDLES, CTRANSLATE2, ctranslate2_compute_types
from ..throughput.work import Arrangement

Kind = Literal["dragoman", "ctranslate2", "hugging-face"]


@dataclass(frozen=True)
class ServedTool(Contender[None, None]):
    """
    Attributes:
        kind: of server
        compute_type: of CTranslate2
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
        threads, and have one worker."""
        workers = (1,) if self.kind == "hugging-face" else (cores, 1)
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


def tools(calibration: Calibration) -> list[ServedTool]:
    """Dragoman first. Tools that are not installed are included: their failure is reported."""
    from ..peers import ctranslate2

    found = [
        ServedTool(b.contender, b.preparation(calibration), _not_called)
        for b in BUNDLES
        if b.precision != "int4"
    ]
    found += [
        ServedTool(
            f"{CTRANSLATE2} {compute_type}",
            partial(ctranslate2.prepare, compute_type=compute_type),
            _not_called,
            kind="ctranslate2",
            compute_type=compute_type,
            batches=(8, 32),
        )
        for compute_type in ctranslate2_compute_types()
        if compute_type in ("float32", "int8")
    ]
    return [
        *found,
        ServedTool(
            "Hugging Face fp32", _unchanged, _not_called, kind="hugging-face", batches=(16,)
        ),
    ]


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


def _unchanged(checkpoint: Path, directory: Path) -> Path:
    return checkpoint
