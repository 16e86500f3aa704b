"""Contenders of speech: Dragoman and the tools that run Whisper on a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ...peers import ctranslate2_runtime, openvino, whisper
from ...peers.interface import LANGUAGE, Stages, Transcriber, Way
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text import DRAGOMAN, dragoman_contenders, peers, prepared_before

FASTER_WHISPER, OPENVINO_GENAI = "faster-whisper", "openvino-genai"
WHISPER_CPP, OPENAI_WHISPER = "whisper.cpp", "openai-whisper"

Clips = Sequence[Path]


class Transcript(NamedTuple):
    """The transcript of a clip, with the time of the standard call and of the stages."""

    text: str
    seconds: float
    """Time of the tool's standard call."""
    stages: Stages | None
    """None unless the clip was decoded greedily, by a tool that times them."""


SpeechContender = Contender[Clips, list[Transcript]]


def contenders(
    checkpoint: Path, openvino_in: Interpreter = HERE, way: Way = "greedy", num_beams: int = 5
) -> list[SpeechContender]:
    """Return Dragoman and its peers in their precisions.

    Args:
        checkpoint: the model as a checkpoint of Hugging Face, for tools that need one; the others
            read it in CTranslate2's format
        openvino_in: interpreter with Optimum-Intel and OpenVINO GenAI
        num_beams: number of beams, unless the way is greedy
    """
    adapt = partial(load_transcriber, way=way, num_beams=num_beams)
    on_torch: dict[str, Any] = {"adapt": adapt, "needs_torch": True}
    everyone = [
        *dragoman_contenders(partial(adapt, load=DragomanTranscriber)),
        *peers(
            FASTER_WHISPER,
            ["float32", "int8"],
            unchanged,
            ctranslate2_runtime.FasterWhisperPeer,
            adapt=adapt,
        ),
        *peers(
            OPENVINO_GENAI,
            openvino.MODES,
            partial(convert, checkpoint=checkpoint, prepare=openvino.prepare_whisper),
            openvino.OpenVINOWhisperPeer,
            adapt=adapt,
            interpreter=openvino_in,
        ),
        *peers(
            WHISPER_CPP,
            ["f16", "q8_0"],
            partial(convert, checkpoint=checkpoint, prepare=whisper.prepare_whisper_cpp),
            whisper.WhisperCppPeer,
            adapt=adapt,
        ),
        *peers(
            OPENAI_WHISPER,
            ["fp32"],
            partial(convert, checkpoint=checkpoint, prepare=whisper.prepare_openai),
            whisper.OpenAIWhisperPeer,
            **on_torch,
        ),
        *peers(
            "transformers",
            ["fp32"],
            partial(prepared_before, prepared=checkpoint),
            whisper.TransformersWhisperPeer,
            **on_torch,
        ),
    ]
    if way != "together":
        return everyone
    return [c for c in everyone if c.name.startswith((DRAGOMAN, FASTER_WHISPER))]


def convert(
    _: Path, directory: Path, *, mode: str, checkpoint: Path, prepare: Callable[..., Path]
) -> Path:
    """Convert the checkpoint of Hugging Face, instead of the model in CTranslate2's format."""
    return prepare(checkpoint, directory, mode=mode)


def load_transcriber(
    directory: Path,
    threads: int,
    *,
    load: Callable[..., Transcriber],
    way: Way = "greedy",
    num_beams: int = 5,
) -> Perform[Clips, list[Transcript]]:
    """Load a model that transcribes all clips one by one; greedily, again to time the stages."""
    transcriber = load(directory, threads, way=way, num_beams=num_beams)

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

    def __init__(self, directory: Path, threads: int, *, way: Way, num_beams: int) -> None:
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
        self._model, self._way, self._num_beams = Model(bundle, backend), way, num_beams
        speech = bundle.manifest.speech
        # No tool detects the language; an English-only model has no language option.
        self._language = LANGUAGE if speech is not None and speech.languages else None

    def transcribe(self, clip: Path) -> str:
        """Transcribe with `Model.generate`, or with `Model.transcribe`."""
        if self._way != "greedy":
            together, texts = self._way == "together", list[str]()
            for update in self._model.transcribe(
                [clip],
                language=self._language,
                num_beams=self._num_beams,
                vad=together,
                cut_at_silence=together,
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
