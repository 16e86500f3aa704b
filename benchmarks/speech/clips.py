"""Clips with transcripts, and the word error on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.metrics import METRICS

TRANSCRIPTS = "transcripts.tsv"


def read_clips(directory: Path) -> dict[Path, str]:
    """The audio files of a folder and what is said in them.

    Args:
        directory: holds the files and `transcripts.tsv`, whose lines are: file name, tab, words

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
    """The word error rate: insertions, deletions and substitutions over the words that were said.

    Args:
        texts: what a model recognised, by clip; at least one
        transcripts: what is said, by clip
    """
    references = [[transcripts[clip]] for clip in texts]
    return METRICS["word-error"].figure(list(texts.values()), references)
