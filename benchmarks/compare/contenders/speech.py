"""Contenders of speech: Dragoman, faster-whisper and OpenVINO GenAI."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...peers import ctranslate2_runtime, openvino
from ...peers.interface import LANGUAGE, Stages, Transcriber, Way
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text import dragoman_contenders, peers

FASTER_WHISPER, OPENVINO_GENAI = "faster-whisper", "openvino-genai"

Clips = Sequence[Path]


class Transcript(NamedTuple):
    """The transcript of a clip, with the time of the standard call and of the stages."""

    text: str
    seconds: float
    """Time of the tool's standard call."""
    stages: Stages | None
    """None unless the clip was decoded greedily."""


SpeechContender = Contender[Clips, list[Transcript]]


def contenders(openvino_in: Interpreter = HERE, way: Way = "greedy") -> list[SpeechContender]:
    """Return Dragoman, faster-whisper and OpenVINO GenAI in their precisions.

    Args:
        openvino_in: interpreter with Optimum-Intel and OpenVINO GenAI, which decodes greedily only
    """
    both = [
        *dragoman_contenders(
            partial(load_transcriber, load=partial(DragomanTranscriber, way=way), way=way)
        ),
        *peers(
            FASTER_WHISPER,
            ["float32", "int8"],
            unchanged,
            ctranslate2_runtime.FasterWhisperPeer,
            adapt=partial(load_in_way, way=way),
        ),
    ]
    if way != "greedy":
        return both
    return [
        *both,
        *peers(
            OPENVINO_GENAI,
            openvino.MODES,
            _prepare_openvino,
            openvino.OpenVINOWhisperPeer,
            adapt=load_transcriber,
            interpreter=openvino_in,
        ),
    ]


def load_in_way(
    directory: Path, threads: int, *, load: Callable[..., Transcriber], way: Way
) -> Perform[Clips, list[Transcript]]:
    """Load a model that takes the way of transcribing as an argument."""
    return load_transcriber(directory, threads, load=partial(load, way=way), way=way)


def load_transcriber(
    directory: Path, threads: int, *, load: Callable[[Path, int], Transcriber], way: Way = "greedy"
) -> Perform[Clips, list[Transcript]]:
    """Load a model that transcribes all clips one by one; greedily, again to time the stages."""
    transcriber = load(directory, threads)

    def transcribe(clips: Clips) -> list[Transcript]:
        texts = []
        for clip in clips:
            started = time.perf_counter()
            text = transcriber.transcribe(clip)
            texts.append((text, time.perf_counter() - started))
        return [
            Transcript(text, seconds, transcriber.stages(clip) if way == "greedy" else None)
            for clip, (text, seconds) in zip(clips, texts, strict=True)
        ]

    return transcribe


class DragomanTranscriber:
    """A speech bundle loaded by Dragoman's runtime."""

    def __init__(self, directory: Path, threads: int, way: Way = "greedy") -> None:
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
        self._model, self._way = Model(bundle, backend), way
        speech = bundle.manifest.speech
        # No tool detects the language; an English-only model has no language option.
        self._language = LANGUAGE if speech is not None and speech.languages else None

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `Model.generate`, or with `Model.transcribe`."""
        if self._way != "greedy":
            together, texts = self._way == "together", list[str]()
            for update in self._model.transcribe(
                [clip], language=self._language, vad=True, cut_at_silence=together
            ):
                texts += [segment.text or "" for segment in update.segments]
                if update.result is not None and update.result.error is not None:
                    raise RuntimeError(update.result.error)
            return "".join(texts).strip()
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
