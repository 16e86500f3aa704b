"""Clips with transcripts, and the word error on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rapidfuzz.distance import Levenshtein

from dragoman.errors import DragomanError

TRANSCRIPTS = "transcripts.tsv"


def read_clips(directory: Path) -> dict[Path, str]:
    """Clips and what is said in them, of a folder with `transcripts.tsv`: file name, tab, words.

    Raises:
        DragomanError: there is no such file, a line is not one, or a clip is missing.
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
                f"{directory / TRANSCRIPTS}, line {number}: expected the name of a file beside it, "
                f"a tab and its words, found {line!r}"
            )
        clips[directory / name] = words
    return clips


def words_of(text: str) -> list[str]:
    """Lower case, without punctuation; a hyphen parts words."""
    return re.sub(r"[^\w' ]", " ", text.lower()).split()


def word_error(found: Mapping[Path, str], clips: Mapping[Path, str]) -> float:
    """Words inserted, left out or replaced, over the words that were said."""
    wrong = sum(Levenshtein.distance(words_of(clips[c]), words_of(t)) for c, t in found.items())
    return wrong / sum(len(words_of(clips[clip])) for clip in found)
