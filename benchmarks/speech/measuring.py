"""Speed and word error of contenders on a set of clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..harness import Failure, Spread, fastest, spread, take_turns
from .clips import word_error
from .contenders import PEERS, SpeechContender, Transcript

CLIPS = "clips"


@dataclass(frozen=True)
class Figures:
    """Of one contender.

    Attributes:
        seconds: for all clips, by the tool's own call
        real_time_factor: the median of `seconds` over the duration of the clips
        ms_per_clip_encoder, ms_per_token_decoder: timed apart; the decoder's include the prompt
        word_error: of the last round's texts, from 0
        decoder_ratio, total_ratio: the lowest median of the peers over this one's, of the decoder's
            time per token and of `seconds`: above 1, this one is faster; None if no peer was
            measured
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
    """One contender's turn at all clips.

    Attributes:
        seconds, encoder: for all clips
        decoder: seconds per token
        texts: by clip
    """

    seconds: float
    encoder: float
    decoder: float
    texts: dict[Path, str]

    @classmethod
    def of(cls, clips: Sequence[Path], transcripts: Sequence[Transcript]) -> Round:
        stages = [transcript.stages for transcript in transcripts]
        return cls(
            sum(transcript.seconds for transcript in transcripts),
            sum(s.encoder for s in stages),
            sum(s.decoder for s in stages) / sum(s.tokens for s in stages),
            {clip: t.text for clip, t in zip(clips, transcripts, strict=True)},
        )


def measure(
    contenders: Sequence[SpeechContender],
    whisper: Path,
    transcripts: Mapping[Path, str],
    audio_seconds: float,
    *,
    directory: Path,
    threads: int,
    rounds: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[list[Figures], list[Failure]]:
    """Measure the contenders; of those that fail, only the reason is reported.

    Args:
        whisper: a CTranslate2 directory
        transcripts: what is said in each clip
        audio_seconds: duration of all clips
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins
    """
    clips = list(transcripts)
    results = take_turns(
        contenders,
        {CLIPS: clips},
        checkpoint=whisper,
        directory=directory,
        threads=[threads],
        rounds=rounds,
        progress=progress,
    )
    rounds_of = {
        entrant.contender: [Round.of(clips, turn.outcome) for turn in turns.counted]
        for entrant, turns in results.turns[CLIPS].items()
    }
    return figures(rounds_of, transcripts, audio_seconds), results.failures


def figures(
    rounds_of: Mapping[str, Sequence[Round]], transcripts: Mapping[Path, str], audio_seconds: float
) -> list[Figures]:
    """The figures of every contender, from its counted rounds."""
    seconds = {n: float(np.median([r.seconds for r in rounds])) for n, rounds in rounds_of.items()}
    decoder = {n: float(np.median([r.decoder for r in rounds])) for n, rounds in rounds_of.items()}
    return [
        Figures(
            contender=name,
            seconds=spread([r.seconds for r in rounds]),
            real_time_factor=round(seconds[name] / audio_seconds, 4),
            ms_per_clip_encoder=spread([r.encoder for r in rounds], 1e3 / len(transcripts)),
            ms_per_token_decoder=spread([r.decoder for r in rounds], 1e3),
            word_error=round(word_error(rounds[-1].texts, transcripts), 4),
            decoder_ratio=_ratio(decoder, name),
            total_ratio=_ratio(seconds, name),
        )
        for name, rounds in rounds_of.items()
    ]


def _ratio(medians: Mapping[str, float], contender: str) -> float | None:
    best = fastest({n: m for n, m in medians.items() if n.startswith(PEERS)})
    return None if best is None else round(medians[best] / medians[contender], 3)
