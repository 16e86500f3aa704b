"""Whisper beside faster-whisper: the same weights, clips and threads, interleaved in one run.

    python -m dragoman.benchmarks.speech WHISPER --clips tests/real/clips

WHISPER is a CTranslate2 directory; bundles are built of it first. In each round every contender
transcribes all clips one by one by its library's own call, files read and features computed
included; then encoder and decoder are timed by themselves. Greedy, without timestamps.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from dragoman.benchmarks.compare import versions
from dragoman.benchmarks.machine import machine

from .clips import read_clips, word_error
from .contenders import Contender, contenders
from .turns import Timings, take_turns

if TYPE_CHECKING:
    from dragoman.runtime.format.manifest import Precision

PEERS = "faster-whisper"


@dataclass(frozen=True)
class Figures:
    """Of one contender; three numbers are median, lowest and highest over the rounds.

    Attributes:
        seconds: for all clips
        real_time_factor: the median of it over the length of the clips
        ms_per_clip_encoder, ms_per_token_decoder: by themselves, the prompt included
        decoder_ratio, total_ratio: the best of the peers' medians over this one's
    """

    contender: str
    seconds: tuple[float, float, float]
    real_time_factor: float
    ms_per_clip_encoder: tuple[float, float, float]
    ms_per_token_decoder: tuple[float, float, float]
    word_error: float
    decoder_ratio: float | None
    total_ratio: float | None


@click.command()
@click.argument("whisper", type=click.Path(path_type=Path))
@click.option(
    "--clips", type=click.Path(path_type=Path), required=True, help="With transcripts.tsv."
)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--name", help="Of the record [the directory's].")
@click.option("--output", type=click.Path(path_type=Path), help="A folder for the figures as JSON.")
def main(
    whisper: Path, clips: Path, threads: int, rounds: int, name: str | None, output: Path | None
) -> None:
    """Measure Dragoman beside faster-whisper on the model in the directory WHISPER."""
    import soundfile

    known = read_clips(clips)
    audio_seconds = sum(soundfile.info(clip).duration for clip in known)
    console = Console(stderr=True)
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place, console.status("") as status:
        directories = {}
        for contender in contenders():
            status.update(f"preparing {contender.name}")
            directories[contender.name] = _prepare(contender, whisper, Path(place))
        timings, failures = take_turns(
            contenders(),
            directories,
            list(known),
            threads=threads,
            rounds=rounds,
            progress=status.update,
        )
    figures = [_figures(n, t, timings, known, audio_seconds) for n, t in timings.items()]
    _show(figures, failures)
    if not figures:
        raise click.ClickException("nothing could be measured")
    if output is not None:
        record = {
            "model": name or whisper.name,
            "clips": len(known),
            "audio_seconds": round(audio_seconds, 2),
            "threads": threads,
            "rounds": rounds,
            "figures": [asdict(figure) for figure in figures],
            "failures": failures,
            "machine": machine(),
            "load_average": load_average,
            "versions": versions(),
            "date": datetime.now(UTC).date().isoformat(),
            "command": " ".join(["python -m dragoman.benchmarks.speech", *sys.argv[1:]]),
        }
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"speech-{name or whisper.name}-{threads}-threads.json"
        file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _prepare(contender: Contender, whisper: Path, place: Path) -> Path:
    """What a contender loads: the directory itself, or the bundle made of it."""
    if contender.precision is None:
        return whisper
    # Imported here: the processes of the contenders import this module, and do without torch.
    from dragoman.export import export_bundle
    from dragoman.export.checkpoints import read_checkpoint
    from dragoman.optimize.target_bundle import optimize_bundle
    from dragoman.runtime import read_bundle

    neutral, directory = place / "neutral", place / contender.precision
    if not neutral.exists():
        neutral.mkdir()
        read = read_checkpoint(whisper)
        export_bundle(read.model, neutral, name="whisper", tokenizers=read.tokenizers)
    directory.mkdir()
    precision = cast("Precision", contender.precision)
    optimize_bundle(read_bundle(neutral), directory, target="cpu", precision=precision)
    return directory


def _figures(
    name: str,
    timings: Timings,
    everyone: dict[str, Timings],
    clips: dict[Path, str],
    audio_seconds: float,
) -> Figures:
    peers = [t for n, t in everyone.items() if n.startswith(PEERS)]
    return Figures(
        name,
        _spread(timings.totals, 1),
        round(float(np.median(timings.totals)) / audio_seconds, 4),
        _spread([s.encoder for s in timings.stages], 1e3 / len(clips)),
        _spread([s.decoder / s.tokens for s in timings.stages], 1e3),
        round(word_error(timings.texts, clips), 4),
        _ratio([_decoder(peer) for peer in peers], _decoder(timings)),
        _ratio([float(np.median(peer.totals)) for peer in peers], float(np.median(timings.totals))),
    )


def _decoder(timings: Timings) -> float:
    return float(np.median([s.decoder / s.tokens for s in timings.stages]))


def _ratio(peers: list[float], own: float) -> float | None:
    return round(min(peers) / own, 3) if peers else None


def _spread(values: list[float], factor: float) -> tuple[float, float, float]:
    median, lowest, highest = (
        round(float(f(values)) * factor, 3) for f in (np.median, np.min, np.max)
    )
    return median, lowest, highest


def _show(figures: list[Figures], failures: dict[str, str]) -> None:
    table = Table("", "seconds", "real-time factor", "encoder, ms a clip", "decoder, ms a token")
    for heading in ("word error", "decoder, against the best", "in all, against the best"):
        table.add_column(heading)
    for figure in figures:
        table.add_row(
            figure.contender,
            _text(figure.seconds),
            f"{figure.real_time_factor:.3f}",
            _text(figure.ms_per_clip_encoder),
            _text(figure.ms_per_token_decoder),
            f"{figure.word_error:.1%}",
            *("" if r is None else f"{r:.2f}x" for r in (figure.decoder_ratio, figure.total_ratio)),
        )
    Console(width=160).print(table)
    for name, reason in failures.items():
        click.echo(f"{name}: {reason}", err=True)


def _text(spread: tuple[float, float, float]) -> str:
    median, lowest, highest = spread
    return f"{median:.2f} ({lowest:.2f} to {highest:.2f})"


if __name__ == "__main__":
    main()
