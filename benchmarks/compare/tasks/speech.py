"""Compares speed and word error of Whisper with faster-whisper and OpenVINO GenAI.

The bundles and OpenVINO's models are first built from a CTranslate2 directory. In each round, every
contender transcribes all clips one by one with the library's standard call, including reading files
and computing features. It then transcribes them again to time encoder and decoder separately.
Decoding is greedy, without timestamps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dragoman.errors import DragomanError

from ...peers import faster_whisper, openvino
from ...peers.interface import LANGUAGE, Stages, Transcriber
from ...processes import HERE, Interpreter
from ..record import Record, Table, table_of
from ..rounds import Contender, Perform, Spread, against, spread, take_turns, unchanged
from ..task import ONLY, OPENVINO, ROUNDS, Option, Run, Task
from .text_contenders import dragoman_contenders

FASTER_WHISPER = "faster-whisper"
OPENVINO_GENAI = "openvino-genai"
TRANSCRIPTS = "transcripts.tsv"

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


def read_clips(directory: Path) -> dict[Path, str]:
    """Return the audio files of a folder with their transcripts.

    Args:
        directory: folder of the files and `transcripts.tsv`, with lines of file name, tab and words

    Raises:
        DragomanError: `transcripts.tsv` cannot be read, a line of it is malformed, or a file is
            missing.
    """
    try:
        lines = (directory / TRANSCRIPTS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{directory}: expected a readable {TRANSCRIPTS}: {error}") from error
    clips = {}
    for number, line in enumerate(lines, 1):
        name, tab, words = line.partition("\t")
        if not tab or not (directory / name).is_file():
            raise DragomanError(
                f"{directory / TRANSCRIPTS}, line {number}: expected the name of a file in the "
                f"same folder, a tab and the words, found {line!r}"
            )
        clips[directory / name] = words
    return clips


def word_error(texts: Mapping[Path, str], transcripts: Mapping[Path, str]) -> float:
    """Return the word error rate.

    Args:
        texts: outputs of a model by clip; at least one
        transcripts: references by clip
    """
    from dragoman.metrics import METRICS

    references = [[transcripts[clip]] for clip in texts]
    return METRICS["word-error"].figure(list(texts.values()), references)


def contenders(openvino_in: Interpreter = HERE) -> list[SpeechContender]:
    """Return contenders: Dragoman, faster-whisper and OpenVINO GenAI in their precisions.

    Failures of missing tools are reported.

    Args:
        openvino_in: interpreter with Optimum-Intel and OpenVINO GenAI
    """
    return [
        *dragoman_contenders(partial(load_transcriber, load=DragomanTranscriber)),
        *(
            Contender(
                f"{FASTER_WHISPER} {compute_type}",
                unchanged,
                partial(
                    load_transcriber,
                    load=partial(faster_whisper.FasterWhisperPeer, compute_type=compute_type),
                ),
                peer=True,
            )
            for compute_type in ("float32", "int8")
        ),
        *(
            Contender(
                f"{OPENVINO_GENAI} {mode}",
                partial(_prepare_openvino, mode=mode),
                partial(load_transcriber, load=partial(openvino.OpenVINOWhisperPeer, mode=mode)),
                peer=True,
                interpreter=openvino_in,
            )
            for mode in openvino.MODES
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
        self._backend = _TimedBackend(open_backend(bundle, None, threads))
        self._model = Model(bundle, self._backend)
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


def _prepare_openvino(whisper: Path, directory: Path, *, mode: openvino.Mode) -> Path:
    from ...models.whisper_checkpoint import whisper_checkpoint

    return openvino.prepare_whisper(whisper_checkpoint(whisper, directory), directory, mode=mode)


@dataclass(frozen=True)
class Figures:
    """The figures of one contender.

    Attributes:
        seconds: time of all clips with the tool's standard call
        real_time_factor: median of `seconds` over the duration of the clips
        ms_per_clip_encoder, ms_per_token_decoder: separate times; the decoder includes the prompt
        word_error: word error rate of the last round
        decoder_ratio, total_ratio: median of the fastest peer over this one's, for the decoder's
            time per token and for `seconds`; above 1: this one is faster; None: no peer
    """

    contender: str
    seconds: Spread
    real_time_factor: float
    ms_per_clip_encoder: Spread
    ms_per_token_decoder: Spread
    word_error: float
    decoder_ratio: float | None
    total_ratio: float | None


@dataclass(frozen=True)
class Round:
    """The figures of one round of a contender.

    Attributes:
        seconds, encoder: seconds of all clips
        decoder: seconds per token
        texts: outputs by clip
    """

    seconds: float
    encoder: float
    decoder: float
    texts: dict[Path, str]

    @classmethod
    def of(cls, clips: Sequence[Path], transcripts: Sequence[Transcript]) -> Round:
        """Return the sums over all clips."""
        stages = [transcript.stages for transcript in transcripts]
        return cls(
            sum(transcript.seconds for transcript in transcripts),
            sum(s.encoder for s in stages),
            sum(s.decoder for s in stages) / sum(s.tokens for s in stages),
            {clip: t.text for clip, t in zip(clips, transcripts, strict=True)},
        )


def measure(
    run: Run, *, whisper: Path, clips: Path, threads: int, rounds: int, name: str | None
) -> dict[str, Any]:
    """Measure all contenders on all clips."""
    import soundfile

    chosen = run.chosen(contenders(run.openvino))
    transcripts = read_clips(clips)
    files = list(transcripts)
    audio_seconds = sum(soundfile.info(clip).duration for clip in files)
    results = take_turns(
        chosen,
        {"clips": files},
        checkpoint=whisper,
        directory=run.directory,
        threads=[threads],
        rounds=rounds,
        progress=run.progress,
    )
    rounds_of = {
        entrant.contender: [Round.of(files, turn.outcome) for turn in turns.counted]
        for entrant, turns in results.turns["clips"].items()
    }
    return {
        "model": name or whisper.name,
        "clips": len(files),
        "audio_seconds": round(audio_seconds, 2),
        "threads": threads,
        "rounds": rounds,
        "figures": figures(rounds_of, transcripts, audio_seconds),
        "failures": {failure.contender: failure.reason for failure in results.failures},
    }


def figures(
    rounds_of: Mapping[str, Sequence[Round]], transcripts: Mapping[Path, str], audio_seconds: float
) -> list[Figures]:
    """Return the figures of every contender from its counted rounds."""

    def medians(value: Callable[[Round], float]) -> dict[str, float]:
        return {n: float(np.median([value(r) for r in rounds])) for n, rounds in rounds_of.items()}

    def ratio(of: Mapping[str, float], name: str) -> float | None:
        peers = {n: m for n, m in of.items() if n.startswith((FASTER_WHISPER, OPENVINO_GENAI))}
        return against(of[name], peers)[1]

    seconds, decoder = medians(lambda r: r.seconds), medians(lambda r: r.decoder)
    return [
        Figures(
            contender=name,
            seconds=spread([r.seconds for r in rounds]),
            real_time_factor=round(seconds[name] / audio_seconds, 4),
            ms_per_clip_encoder=spread([r.encoder for r in rounds], 1e3 / len(transcripts)),
            ms_per_token_decoder=spread([r.decoder for r in rounds], 1e3),
            word_error=round(word_error(rounds[-1].texts, transcripts), 4),
            decoder_ratio=ratio(decoder, name),
            total_ratio=ratio(seconds, name),
        )
        for name, rounds in rounds_of.items()
    ]


COLUMNS = (
    ("", "{contender}"),
    ("seconds", "{seconds[0]:.2f} ({seconds[1]:.2f} to {seconds[2]:.2f})"),
    ("real-time factor", "{real_time_factor:.3f}"),
    *(
        (heading, f"{{{name}[0]:.2f}} ({{{name}[1]:.2f}} to {{{name}[2]:.2f}})")
        for heading, name in (
            ("encoder, ms per clip", "ms_per_clip_encoder"),
            ("decoder, ms per token", "ms_per_token_decoder"),
        )
    ),
    ("word error", "{word_error:.1%}"),
    ("decoder, x best peer", "{decoder_ratio:.2f}"),
    ("total, x best peer", "{total_ratio:.2f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each contender."""
    title = "{model}; {clips} clips of {audio_seconds} s, {rounds} rounds".format_map(record)
    yield table_of(record["figures"], COLUMNS, title=title)


SPEECH = Task(
    name="speech",
    help="Compare speed and word error of the Whisper model in WHISPER, a CTranslate2 directory.",
    options=(
        Option("whisper", kind=Path),
        Option("--clips", "Folder of audio files and transcripts.tsv.", Path, required=True),
        Option("--threads", "Threads of every contender.", int, 2),
        ROUNDS,
        ONLY,
        OPENVINO,
        Option("--name", "The model's name in the record [default: the directory's]."),
    ),
    measure=measure,
    rows="figures",
    file=lambda record, options: f"speech-{record['model']}-{record['threads']}-threads",
    tables=tables,
)
