"""Speech models generate what Hugging Face's `generate` generates."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.runtime import Result

from ...speech_models import LANGUAGES, RATE, noise, their_segments, their_tokens
from .conftest import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SHORT = [noise(seconds, seed) for seed, seconds in enumerate((0.31, 1.0, 0.7, 0.99, 0.05, 0.5))]
LONG = [noise(seconds, seed) for seed, seconds in enumerate((2.3, 4.13, 1.02), start=10)]


def tokens(results: list[Result]) -> list[list[int]]:
    assert [result.error for result in results] == [None] * len(results)
    return [list(result.tokens) for result in results]


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_window_gives_their_tokens(case: Case, timestamps: bool) -> None:
    found = case.ours.generate(SHORT, timestamps=timestamps)
    expected = [their_tokens(case.theirs, a, return_timestamps=timestamps) for a in SHORT]
    assert tokens(found) == expected
    assert len({tuple(row) for row in expected}) > 3  # they depend on what is heard


@pytest.mark.parametrize("case", ["multilingual", "multilingual-cpu"], indirect=True)
@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"language": "de"},
        {"task": "translate"},
        {"language": "haw", "task": "transcribe"},
        {"language": "french", "task": "translate"},
    ],
)
def test_language_and_task_are_part_of_the_prompt(
    case: Case, options: dict[str, str], timestamps: bool
) -> None:
    found = case.ours.generate(SHORT[:3], timestamps=timestamps, **options)  # type: ignore[arg-type]
    for audio, result in zip(SHORT, found, strict=False):
        expected = their_tokens(case.theirs, audio, return_timestamps=timestamps, **options)
        assert list(result.tokens) == expected
    name = options.get("language")
    code = {"french": "fr"}.get(name or "", name)
    assert code is None or {result.language for result in found} == {code}


def test_a_language_that_is_not_named_is_detected(multilingual: Case) -> None:
    found = multilingual.ours.generate(SHORT)
    assert {r.language for r in found} <= set(LANGUAGES)
    for audio, result in zip(SHORT, found, strict=True):
        stated = multilingual.ours.generate([audio], language=result.language)[0]
        assert stated.tokens == result.tokens
        assert stated.log_probability == pytest.approx(result.log_probability, abs=1e-4)


def test_long_audio_in_one_call(case: Case) -> None:
    """Of different lengths, with short audio between them, in batches of all sizes."""
    audio = [LONG[0], SHORT[0], LONG[1], SHORT[1], LONG[2]]
    expected = [
        their_tokens(case.theirs, a, return_timestamps=len(a) > RATE or None) for a in audio
    ]
    for size in (None, 1, 2):
        assert tokens(case.ours.generate(audio, max_batch_size=size)) == expected


def test_segments_of_long_audio(case: Case) -> None:
    for audio, result in zip(LONG, case.ours.generate(LONG, timestamps=True), strict=True):
        expected = their_segments(case.theirs, audio, return_timestamps=True)
        assert result.segments is not None
        assert [list(s.tokens) for s in result.segments] == [s["tokens"].tolist() for s in expected]
        seconds, last = len(audio) / RATE, 0.0
        for mine, theirs in zip(result.segments, expected, strict=True):
            # Hugging Face dates some text to the padding, after the recording.
            start = float(theirs["start"]) if theirs["start"] < seconds else last
            assert mine.start == pytest.approx(start)
            last = min(float(theirs["end"]), seconds)
            assert mine.end == pytest.approx(last)


def test_fewer_tokens(case: Case) -> None:
    for limit in (1, 2, 9):
        expected = [their_tokens(case.theirs, a, max_new_tokens=limit) for a in SHORT]
        assert tokens(case.ours.generate(SHORT, max_new_tokens=limit)) == expected


@pytest.mark.parametrize(
    "rules", [{"no_repeat_ngram_size": 2}, {"repetition_penalty": 1.6}], ids=str
)
def test_rules_of_a_call(case: Case, rules: dict[str, Any]) -> None:
    expected = [their_tokens(case.theirs, audio, **rules) for audio in SHORT]
    found = tokens(case.ours.generate(SHORT, **rules))
    assert found == expected != tokens(case.ours.generate(SHORT))


def test_the_text_is_that_of_the_tokens(multilingual: Case) -> None:
    [result] = multilingual.ours.generate([LONG[0]])
    assert result.segments is not None and result.text is not None
    words = [f" w{token}" for token in result.tokens if token < 60]
    assert f" {result.text}" == "".join(words)
    assert "".join(segment.text or "" for segment in result.segments) == f" {result.text}"


def test_without_timestamps_a_window_is_one_segment(english: Case) -> None:
    [result] = english.ours.generate([SHORT[0]])
    [segment] = result.segments or ()
    assert (segment.start, segment.end) == (0, 0.31)
    assert (segment.tokens, segment.text) == (result.tokens, f" {result.text}")


def test_a_stream_has_the_tokens_of_a_window(case: Case) -> None:
    audio = SHORT[3]
    [result] = case.ours.generate([audio])
    ends = [] if result.end_token is None else [result.end_token]
    assert [token.id for token in case.ours.stream(audio)] == [*result.tokens, *ends]


def test_a_stream_with_timestamps(case: Case) -> None:
    """What follows the last whole segment is not decoded again."""
    for audio in SHORT:
        [result] = case.ours.generate([audio], timestamps=True)
        streamed = tuple(t.id for t in case.ours.stream(audio, timestamps=True))
        first = (result.segments or ())[0].tokens
        assert streamed[: len(first)] == first
