"""Segments of speech as subtitles."""

from __future__ import annotations

from collections.abc import Sequence

from ....decoding.results import Segment


def srt(segments: Sequence[Segment]) -> str:
    """SubRip: numbered, with a comma before thousandths."""
    return "".join(
        f"{number}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_words(s)}\n\n"
        for number, s in enumerate(segments, 1)
    )


def vtt(segments: Sequence[Segment]) -> str:
    """WebVTT (W3C)."""
    return "WEBVTT\n\n" + "".join(
        f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_words(s)}\n\n" for s in segments
    )


def _words(segment: Segment) -> str:
    """In one line, and without the arrow, which would be read as times."""
    return " ".join((segment.text or "").split()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    minutes, thousandths = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{thousandths // 1000:02}{point}{thousandths % 1000:03}"
