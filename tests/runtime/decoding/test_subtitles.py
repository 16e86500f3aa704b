"""Subtitles of transcripts, against hand-written files."""

from __future__ import annotations

import pytest

from dragoman.runtime.decoding.results import Result, Segment, SubtitleFormat, Word, subtitles

WORDS = (Word(0.1, 0.5, " Law", 0.9), Word(0.5, 3661.5, " & <order>-->", 0.8))
SEGMENTS = (
    Segment(0.1, 3661.5, " Law & <order>-->", (1, 2)),
    Segment(3661.5, 3661.5, " after the end", (3,)),
)


def result(words: tuple[Word, ...] = ()) -> Result:
    first, second = SEGMENTS
    timed = Segment(first.start, first.end, first.text, first.tokens, words)
    return Result("", (1, 2, 3), 0.0, "end", segments=(timed, second))


@pytest.mark.parametrize(
    ("form", "words", "expected"),
    [
        ("srt", (), "1\n00:00:00,100 --> 01:01:01,500\nLaw & <order>->\n\n"),
        (
            "srt",
            WORDS,
            "1\n00:00:00,100 --> 00:00:00,500\nLaw\n\n"
            "2\n00:00:00,500 --> 01:01:01,500\n& <order>->\n\n",
        ),
        (
            "vtt",
            (),
            "WEBVTT\n\n00:00:00.100 --> 01:01:01.500\nLaw &amp; &lt;order&gt;-&gt;\n\n",
        ),
        (
            "vtt",
            WORDS,
            "WEBVTT\n\n00:00:00.100 --> 01:01:01.500\n<c>Law</c> "
            "<00:00:00.500><c>&amp; &lt;order&gt;-&gt;</c>\n\n",
        ),
        ("tsv", (), "start\tend\ttext\n100\t3661500\tLaw & <order>->\n"),
        ("tsv", WORDS, "start\tend\ttext\n100\t500\tLaw\n500\t3661500\t& <order>->\n"),
        ("lrc", (), "[00:00.10]Law & <order>->\n"),
        ("lrc", WORDS, "[00:00.10]<00:00.10>Law <00:00.50>& <order>->\n"),
    ],
)
def test_subtitles(form: SubtitleFormat, words: tuple[Word, ...], expected: str) -> None:
    assert subtitles(result(words), form) == expected


@pytest.mark.parametrize("form", ["srt", "vtt", "tsv", "lrc"])
def test_nothing_spoken(form: SubtitleFormat) -> None:
    empty = {"srt": "", "vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n", "lrc": ""}
    assert subtitles(Result("", (), 0.0, "end", segments=()), form) == empty[form]
