"""Comparison with faster-whisper and OpenVINO GenAI: the same weights, clips and threads,
interleaved in one run.

    python -m dragoman.benchmarks.speech WHISPER --clips tests/real/clips

WHISPER is a CTranslate2 directory, from which the bundles and OpenVINO's models are built first. In
each round every contender transcribes all clips one by one with the library's own call, reading the
file and computing its features included; then it transcribes them again to time encoder and decoder
apart. Decoding is greedy, without timestamps.
"""

# Nothing that imports torch is imported at the top: the contenders' processes import this module
# and are measured without PyTorch.

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, Interpreter
from ..taking_part import only_option, openvino_option, selected
from .clips import read_clips
from .contenders import contenders
from .measuring import measure
from .report import SpeechComparison, show


@click.command()
@click.argument("whisper", type=click.Path(path_type=Path))
@click.option(
    "--clips",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of audio files and transcripts.tsv.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Threads of every contender.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@only_option
@openvino_option
@click.option("--name", help="The model's name in the record [default: the directory's].")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder to write the figures to, as JSON."
)
def main(
    whisper: Path,
    clips: Path,
    threads: int,
    rounds: int,
    only: tuple[str, ...],
    openvino_python: Path | None,
    name: str | None,
    output: Path | None,
) -> None:
    """Compare Dragoman with faster-whisper and OpenVINO GenAI on the model in WHISPER."""
    import soundfile

    load_average = os.getloadavg()[0]
    console = Console(stderr=True)
    try:
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        everyone = contenders(openvino)
        names = selected([contender.name for contender in everyone], only)
        transcripts = read_clips(clips)
        audio_seconds = sum(soundfile.info(clip).duration for clip in transcripts)
        with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
            figures, failures = measure(
                [contender for contender in everyone if contender.name in names],
                whisper,
                transcripts,
                audio_seconds,
                directory=Path(workspace),
                threads=threads,
                rounds=rounds,
                progress=status.update,
            )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = SpeechComparison(
        model=name or whisper.name,
        clips=len(transcripts),
        audio_seconds=round(audio_seconds, 2),
        threads=threads,
        rounds=rounds,
        figures=figures,
        failures=failures,
        circumstances=circumstances(
            "dragoman.benchmarks.speech",
            load_average,
            environments=[openvino] if openvino_python else [],
        ),
    )
    show(comparison)
    if not figures:
        raise click.ClickException("expected at least one contender that works, found none")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"speech-{comparison.model}-{threads}-threads.json"
        file.write_text(comparison.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
