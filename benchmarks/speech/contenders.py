"""What is compared: how each contender loads, transcribes a clip, and divides its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

# Nothing that imports torch is imported here: those compared do without.


class Stages(NamedTuple):
    """Seconds of encoder and decoder on one clip, and tokens decoded, the end token included."""

    encoder: float
    decoder: float
    tokens: int


class Transcriber(Protocol):
    def transcribe(self, clip: Path) -> str:
        """All of it, the file's reading included."""

    def stages(self, clip: Path) -> Stages:
        """Encoder and decoder by themselves."""


Load = Callable[[Path, int], Transcriber]
"""A directory and a number of threads -> what transcribes."""


@dataclass(frozen=True)
class Contender:
    """One of those compared. `load` can be pickled, for it runs in another process.

    Attributes:
        precision: of the bundle, of a contender that is ours
    """

    name: str
    load: Load
    precision: str | None = None


class DragomanTranscriber:
    def __init__(self, directory: Path, threads: int) -> None:
        from dragoman.runtime import Model, read_bundle
        from dragoman.runtime.backends import open_backend

        bundle = read_bundle(directory)
        self._backend = _Watched(open_backend(bundle, None, threads))
        self._model = Model(bundle, self._backend)

    def transcribe(self, clip: Path) -> str:
        (result,) = self._model.generate([clip])
        if result.error is not None:
            raise RuntimeError(result.error)
        return (result.text or "").strip()

    def stages(self, clip: Path) -> Stages:
        (result,) = self._model.generate([clip])
        ended = time.perf_counter()
        watch = self._backend
        return Stages(watch.encoder, ended - watch.encoded, len(result.tokens) + 1)


class _Watched:
    """A backend that notes how long its encoder took, and when it was done."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.encoder = self.encoded = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def start(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        state = self._backend.start(*arguments)
        self.encoded = time.perf_counter()
        self.encoder = self.encoded - started
        return state


def _load_faster_whisper(directory: Path, threads: int, *, compute_type: str) -> Transcriber:
    from dragoman.benchmarks.peers.faster_whisper import FasterWhisperPeer

    return FasterWhisperPeer(directory, threads, compute_type)


def contenders() -> list[Contender]:
    return [
        *(
            Contender(f"Dragoman {precision}", DragomanTranscriber, precision)
            for precision in ("fp32", "int8", "int4")
        ),
        *(
            Contender(
                f"faster-whisper {compute_type}",
                partial(_load_faster_whisper, compute_type=compute_type),
            )
            for compute_type in ("float32", "int8")
        ),
    ]
