"""Clips with transcripts, and the word error on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rapidfuzz.distance import Levenshtein

from dragoman.errors import DragomanError

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


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation; a hyphen separates words."""
    return re.sub(r"[^\w' ]", " ", text.lower()).split()


def word_error(texts: Mapping[Path, str], transcripts: Mapping[Path, str]) -> float:
    """The word error rate: insertions, deletions and substitutions over the words that were said.

    Args:
        texts: what a model recognised, by clip; at least one
        transcripts: what is said, by clip
    """
    spoken = {clip: words_of(transcripts[clip]) for clip in texts}
    errors = sum(Levenshtein.distance(spoken[c], words_of(text)) for c, text in texts.items())
    return errors / sum(map(len, spoken.values()))
