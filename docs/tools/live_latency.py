"""Measures how long after its end a word is written: `Model.listen`, with clips in real time.

    python -m docs.tools.live_latency bundles/whisper-tiny.en tests/real/clips/librivox-*.flac

Ends of words are those of `generate(word_timestamps=True)` for the same clips; words that it does
not have are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from dragoman.benchmarks.machine import machine
from dragoman.runtime import Model, load
from dragoman.runtime.audio import read_audio

CHUNK = 0.1
"""Seconds."""
SILENCE = 1.0
"""Seconds after each clip, in which its last word becomes certain."""


def spoken(audio: NDArray[np.float32], rate: int) -> Iterator[NDArray[np.float32]]:
    """Yield audio in chunks, each when it would have been recorded."""
    began, size = time.monotonic(), round(CHUNK * rate)
    for begin in range(0, len(audio), size):
        chunk = audio[begin : begin + size]
        time.sleep(max(0.0, began + (begin + len(chunk)) / rate - time.monotonic()))
        yield chunk


def delays(model: Model, clip: Path) -> list[float]:
    """Return the seconds between the end of each word and its update."""
    assert model.manifest.audio is not None
    rate = model.manifest.audio.sampling_rate
    audio = np.pad(read_audio(clip), (0, round(SILENCE * rate)))
    (result,) = model.generate([audio], word_timestamps=True, num_beams=1, do_sample=False)
    ends = [word for segment in result.segments or () for word in segment.words or ()]
    heard: list[tuple[str, float]] = []
    began = time.monotonic()
    for update in model.listen(spoken(audio, rate)):
        now = time.monotonic() - began
        heard += [(word, now) for word in update.text.split()]
    words = [word.text.strip() for word in ends]
    matcher = SequenceMatcher(None, words, [word for word, _ in heard], autojunk=False)
    return [
        heard[match.b + i][1] - ends[match.a + i].end
        for match in matcher.get_matching_blocks()
        for i in range(match.size)
    ]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("clips", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--threads", default=2, show_default=True)
def main(bundle: Path, clips: tuple[Path, ...], threads: int) -> None:
    """Print the median, the 90th percentile and the largest delay of words."""
    with load(bundle, threads=threads) as model:
        found = [delay for clip in clips for delay in delays(model, clip)]
    median, high = np.percentile(found, (50, 90))
    click.echo(f"{machine()}, {threads} threads: {bundle}, {len(clips)} clips, {len(found)} words")
    click.echo(f"median {median:.2f} s, 90th percentile {high:.2f} s, largest {max(found):.2f} s")


if __name__ == "__main__":
    main()
