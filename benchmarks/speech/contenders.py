"""The contenders: Dragoman's precisions, faster-whisper's compute types and OpenVINO GenAI's modes.

Nothing that imports torch is imported at the top: contenders load in processes that import this
module and are measured without PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..harness import HERE, Contender, Interpreter, Perform, unchanged
from ..models.bundles import bundle_of_checkpoint
from ..peers import openvino
from ..peers.interface import LANGUAGE, Stages, Transcriber

FASTER_WHISPER = "faster-whisper"
OPENVINO_GENAI = "openvino-genai"
PEERS = (FASTER_WHISPER, OPENVINO_GENAI)
"""How the names of those begin that Dragoman is compared with."""

Clips = Sequence[Path]


class Transcript(NamedTuple):
    """A clip, transcribed once by the tool's own call and once with its stages timed.

    Attributes:
        seconds: of the tool's own call
    """

    text: str
    seconds: float
    stages: Stages


SpeechContender = Contender[Clips, list[Transcript]]


def contenders(openvino_in: Interpreter = HERE) -> list[SpeechContender]:
    """Tools that are not installed are included: their failure is reported.

    Args:
        openvino_in: has Optimum-Intel and OpenVINO GenAI
    """
    return [
        *(
            Contender(
                f"Dragoman {precision}",
                partial(bundle_of_checkpoint, target="cpu", precision=precision),
                partial(load_transcriber, load=DragomanTranscriber),
            )
            for precision in ("fp32", "int8", "int4")
        ),
        *(
            Contender(
                f"{FASTER_WHISPER} {compute_type}",
                unchanged,
                partial(
                    load_transcriber,
                    load=partial(_load_faster_whisper, compute_type=compute_type),
                ),
            )
            for compute_type in ("float32", "int8")
        ),
        *(
            Contender(
                f"{OPENVINO_GENAI} {mode}",
                partial(_prepare_openvino, mode=mode),
                partial(load_transcriber, load=partial(_load_openvino, mode=mode)),
                interpreter=openvino_in,
            )
            for mode in openvino.MODES
        ),
    ]


def load_transcriber(
    directory: Path, threads: int, *, load: Callable[[Path, int], Transcriber]
) -> Perform[Clips, list[Transcript]]:
    """Load a model that transcribes all clips one by one, and then again for the stages."""
    transcriber = load(directory, threads)

    def transcribe(clips: Clips) -> list[Transcript]:
        texts = []
        for clip in clips:
            started = time.perf_counter()
            text = transcriber.transcribe(clip)
            texts.append((text, time.perf_counter() - started))
        return [
            Transcript(text, seconds, transcriber.stages(clip))
            for clip, (text, seconds) in zip(clips, texts, strict=True)
        ]

    return transcribe


class DragomanTranscriber:
    """A bundle of a speech model, loaded by Dragoman's runtime."""

    def __init__(self, directory: Path, threads: int) -> None:
        from dragoman.runtime import Model, read_bundle
        from dragoman.runtime.backends import open_backend

        bundle = read_bundle(directory)
        self._backend = _TimedBackend(open_backend(bundle, None, threads))
        self._model = Model(bundle, self._backend)
        speech = bundle.manifest.speech
        # Nobody detects the language; a model of English alone takes none.
        self._language = LANGUAGE if speech is not None and speech.languages else None

    def transcribe(self, clip: Path) -> str:
        """By `Model.generate`."""
        (result,) = self._model.generate([clip], language=self._language)
        if result.error is not None:
            raise RuntimeError(result.error)
        return (result.text or "").strip()

    def stages(self, clip: Path) -> Stages:
        """By `Model.generate`: the encoder's last call, and everything after it."""
        (result,) = self._model.generate([clip], language=self._language)
        ended = time.perf_counter()
        backend = self._backend
        return Stages(backend.encoder_seconds, ended - backend.encoded_at, len(result.tokens) + 1)


class _TimedBackend:
    """A backend that records the duration and the end of its last encoder call."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.encoder_seconds = self.encoded_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def start(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        state = self._backend.start(*arguments)
        self.encoded_at = time.perf_counter()
        self.encoder_seconds = self.encoded_at - started
        return state


def _load_faster_whisper(directory: Path, threads: int, *, compute_type: str) -> Transcriber:
    from ..peers.faster_whisper import FasterWhisperPeer

    return FasterWhisperPeer(directory, threads, compute_type)


def _prepare_openvino(whisper: Path, directory: Path, *, mode: openvino.Mode) -> Path:
    from ..models.whisper_checkpoint import whisper_checkpoint
    from ..peers import openvino_whisper

    return openvino_whisper.prepare(whisper_checkpoint(whisper, directory), directory, mode=mode)


def _load_openvino(directory: Path, threads: int, *, mode: openvino.Mode) -> Transcriber:
    from ..peers.openvino_whisper import OpenVINOWhisperPeer

    return OpenVINOWhisperPeer(directory, threads, mode)
