"""Subtitles of transcripts, against hand-written files."""

from __future__ import annotations

import pytest

from dragoman.runtime.decoding.results import Result, Segment, SubtitleFormat, Word, subtitles

WORDS = (Word(0.1, 0.5, " Law", 0.9), Word(0.5, 3661.5, " & <order>-->", 0.8))
SEGMENTS = (
    Segment(0.1, 3661.5, " Law & <order>-->", (1, 2)),
    Segment(3661.5, 3661.5, " after the end", (3,)),
)


def result(words: tuple[Word, ...] | None = None) -> Result:
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
        ("lrc", WORDS, "[00:00.10]Law <00:00.50>& <order>->\n"),
    ],
)
def test_subtitles(form: SubtitleFormat, words: tuple[Word, ...], expected: str) -> None:
    assert subtitles(result(words), form) == expected


@pytest.mark.parametrize("form", ["srt", "vtt", "tsv", "lrc"])
def test_nothing_spoken(form: SubtitleFormat) -> None:
    empty = {"srt": "", "vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n", "lrc": ""}
    assert subtitles(Result("", (), 0.0, "end", segments=()), form) == empty[form]


AT_ONCE = (
    Word(4.8, 5.1, " He", 1.0),
    Word(5.1, 5.1, " might", 1.0),
    Word(5.1, 5.1, " not", 1.0),
    Word(5.1, 5.7, " go", 1.0),
    Word(5.7, 5.7, " on", 1.0),
)


@pytest.mark.parametrize(
    ("form", "words", "expected"),
    [
        ("tsv", AT_ONCE, "4800\t5100\tHe\n5100\t5700\tmight not go on\n"),
        ("tsv", AT_ONCE[1:3], "5000\t6000\tmight not\n"),
        ("lrc", AT_ONCE, "[00:05.00]He <00:05.10>might not go <00:05.70>on\n"),
        (
            "vtt",
            AT_ONCE,
            "00:00:05.000 --> 00:00:06.000\n<c>He</c> <00:00:05.100><c>might</c> <c>not</c> "
            "<c>go</c> <00:00:05.700><c>on</c>\n\n",
        ),
    ],
)
def test_words_at_one_time_are_not_lost(
    form: SubtitleFormat, words: tuple[Word, ...], expected: str
) -> None:
    """Attention may pass several words at once, and a word may begin before its segment."""
    segment = Segment(5.0, 6.0, " He might not go on", (1,), words)
    found = subtitles(Result("", (1,), 0.0, "end", segments=(segment,)), form)
    assert found.endswith(expected)
    assert found in (expected, f"start\tend\ttext\n{expected}", f"WEBVTT\n\n{expected}")


def test_a_segment_whose_words_are_at_one_time_is_shown_for_a_frame() -> None:
    segment = Segment(5.1, 5.1, " go", (1,), (Word(5.1, 5.1, " go", 1.0),))
    one = Result("", (1,), 0.0, "end", segments=(segment,))
    assert subtitles(one, "srt") == "1\n00:00:05,100 --> 00:00:05,120\ngo\n\n"
    assert subtitles(one, "lrc") == "[00:05.10]go\n"
