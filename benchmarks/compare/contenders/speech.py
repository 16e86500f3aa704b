"""Contenders of speech: Dragoman, faster-whisper and OpenVINO GenAI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import LANGUAGE, Stages, Transcriber
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text import dragoman_contenders, peers

FASTER_WHISPER, OPENVINO_GENAI = "faster-whisper", "openvino-genai"

Clips = Sequence[Path]


class Transcript(NamedTuple):
    """The transcript of a clip, with the time of the standard call and of the stages.

    Attributes:
        seconds: time of the tool's standard call
    """

    text: str
    seconds: float
    stages: Stages


SpeechContender = Contender[Clips, list[Transcript]]


def contenders(openvino_in: Interpreter = HERE) -> list[SpeechContender]:
    """Return Dragoman, faster-whisper and OpenVINO GenAI in their precisions.

    Args:
        openvino_in: interpreter with Optimum-Intel and OpenVINO GenAI
    """
    return [
        *dragoman_contenders(partial(load_transcriber, load=DragomanTranscriber)),
        *peers(
            FASTER_WHISPER,
            ["float32", "int8"],
            unchanged,
            ctranslate2_runtime.FasterWhisperPeer,
            adapt=load_transcriber,
        ),
        *peers(
            OPENVINO_GENAI,
            openvino.MODES,
            _prepare_openvino,
            openvino.OpenVINOWhisperPeer,
            adapt=load_transcriber,
            interpreter=openvino_in,
        ),
    ]


def load_transcriber(
    directory: Path, threads: int, *, load: Callable[[Path, int], Transcriber]
) -> Perform[Clips, list[Transcript]]:
    """Load a model that transcribes all clips one by one, then again to time the stages."""
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
    """A speech bundle loaded by Dragoman's runtime."""

    def __init__(self, directory: Path, threads: int) -> None:
        from dragoman.runtime import Model, read_bundle
        from dragoman.runtime.backends import open_backend

        bundle = read_bundle(directory)
        backend: Any = open_backend(bundle, None, threads)
        start = backend.start

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            state = start(*arguments)
            self._encoded_at = time.perf_counter()
            self._encoder_seconds = self._encoded_at - started
            return state

        backend.start = timed
        self._model = Model(bundle, backend)
        speech = bundle.manifest.speech
        # No tool detects the language; an English-only model has no language option.
        self._language = LANGUAGE if speech is not None and speech.languages else None

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `Model.generate`."""
        (result,) = self._model.generate([clip], language=self._language)
        if result.error is not None:
            raise RuntimeError(result.error)
        return (result.text or "").strip()

    def stages(self, clip: Path) -> Stages:
        """Time the encoder's last call within `Model.generate`, and everything after it."""
        (result,) = self._model.generate([clip], language=self._language)
        ended = time.perf_counter()
        return Stages(self._encoder_seconds, ended - self._encoded_at, len(result.tokens) + 1)


def _prepare_openvino(whisper: Path, directory: Path, *, mode: openvino.Mode) -> Path:
    from ...models.real_models import whisper_checkpoint

    return openvino.prepare_whisper(whisper_checkpoint(whisper, directory), directory, mode=mode)
