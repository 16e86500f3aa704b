"""Contenders of speech: Dragoman and the tools that run Whisper on a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...peers import openvino, whisper
from ...peers.ctranslate2_runtime import load_faster_whisper
from ...peers.interface import LANGUAGE, Stages, Transcriber, Way
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, timed, unchanged
from .text import DRAGOMAN, dragoman_contenders, peers, prepared_before

if TYPE_CHECKING:
    from dragoman.runtime.decoding.results import Result

FASTER_WHISPER, OPENVINO_GENAI = "faster-whisper", "openvino-genai"
WHISPER_CPP, OPENAI_WHISPER = "whisper.cpp", "openai-whisper"

Clips = Sequence[Path]


class Transcript(NamedTuple):
    """The transcript of a clip, with the time of the tool's standard call and of the stages."""

    text: str
    seconds: float
    stages: Stages | None
    """None unless the clip was decoded greedily, by a tool that times them."""


SpeechContender = Contender[Clips, list[Transcript]]


def contenders(
    checkpoint: Path, openvino_in: Interpreter = HERE, way: Way = "greedy", num_beams: int = 5
) -> list[SpeechContender]:
    """Return Dragoman and its peers in their precisions.

    Some read the checkpoint of Hugging Face, the others the model in CTranslate2's format.
    """
    adapt = partial(load_transcriber, way=way, num_beams=num_beams)
    tools = partial(peers, adapt=adapt)
    converted = partial(convert, checkpoint=checkpoint)
    on_openvino = partial(converted, prepare=openvino.prepare_whisper), openvino.load_whisper
    in_ggml = partial(converted, prepare=whisper.prepare_whisper_cpp)
    in_torch = partial(converted, prepare=whisper.prepare_openai)
    ready = partial(prepared_before, prepared=checkpoint)
    everyone = [
        *dragoman_contenders(partial(adapt, load=load_bundle)),
        *tools(FASTER_WHISPER, ["float32", "int8"], unchanged, load_faster_whisper),
        *tools(OPENVINO_GENAI, openvino.MODES, *on_openvino, interpreter=openvino_in),
        *tools(WHISPER_CPP, ["f16", "q8_0"], in_ggml, whisper.load_whisper_cpp),
        *tools(OPENAI_WHISPER, ["fp32"], in_torch, whisper.load_openai, needs_torch=True),
        *tools("transformers", ["fp32"], ready, whisper.load_transformers, needs_torch=True),
    ]
    batching = DRAGOMAN, FASTER_WHISPER
    return [c for c in everyone if way != "together" or c.name.startswith(batching)]


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
    stages = transcriber.stages if way == "greedy" else None

    def transcribe(clips: Clips) -> list[Transcript]:
        texts = [timed(transcriber.transcribe, clip) for clip in clips]
        return [
            Transcript(text, seconds, stages(clip) if stages is not None else None)
            for clip, (text, seconds) in zip(clips, texts, strict=True)
        ]

    return transcribe


def load_bundle(directory: Path, threads: int, *, way: Way, num_beams: int) -> Transcriber:
    """Load a speech bundle with Dragoman's runtime."""
    from dragoman.runtime import Model, read_bundle
    from dragoman.runtime.backends import open_backend

    bundle = read_bundle(directory)
    backend: Any = open_backend(bundle, None, threads)
    start, clock = backend.start, [0.0, 0.0]

    def start_timed(*arguments: Any) -> Any:
        clock[0] = time.perf_counter()
        state = start(*arguments)
        clock[1] = time.perf_counter()
        return state

    backend.start = start_timed
    model, speech = Model(bundle, backend), bundle.manifest.speech
    # No tool detects the language; an English-only model has no language option.
    language = LANGUAGE if speech is not None and speech.languages else None

    def generated(clip: Path) -> Result:
        (result,) = model.generate([clip], language=language)
        if result.error is not None:
            raise RuntimeError(result.error)
        return result

    def transcribe(clip: Path) -> str:
        if way == "greedy":
            return (generated(clip).text or "").strip()
        together: Any = dict.fromkeys(("vad", "cut_at_silence"), way == "together")
        texts: list[str] = []
        for update in model.transcribe([clip], language=language, num_beams=num_beams, **together):
            texts += [segment.text or "" for segment in update.segments]
            if update.result is not None and update.result.error is not None:
                raise RuntimeError(update.result.error)
        return "".join(texts).strip()

    def stages(clip: Path) -> Stages:
        """Time the encoder's last call within `Model.generate`, and everything after it."""
        result = generated(clip)
        ended = time.perf_counter()
        return Stages(clock[1] - clock[0], ended - clock[1], len(result.tokens) + 1)

    return Transcriber(transcribe, stages)
