"""Live speech: what is committed does not change, and depends on the samples only."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman import DragomanError
from dragoman.runtime import CancelError, LiveUpdate
from dragoman.runtime.audio import AudioError, read_audio
from dragoman.runtime.audio.voice_activity import WINDOW, VoiceDetector
from dragoman.runtime.speech import live

from ...speech_models import RATE, noise
from .conftest import Case

CLIPS = Path(__file__).parents[2] / "real" / "clips"
AUDIO = noise(3.3, 12)
ALL: dict[str, Any] = {"vad": False}
Signal = NDArray[np.float32]


def checked(updates: Sequence[LiveUpdate]) -> Sequence[LiveUpdate]:
    """The texts of updates are those of their segments, which follow one another."""
    text, segments = "", []
    for update in updates:
        text += update.text
        if update.segment is not None:
            assert text == update.segment.text
            segments.append(update.segment)
            text = ""
    assert text == ""
    assert all(one.end <= other.start for one, other in pairwise(segments))
    return updates


def german(case: Case) -> dict[str, Any]:
    speech = case.ours.manifest.speech
    return {"language": "de"} if speech is not None and speech.languages else {}


def half(case: Case) -> int:
    """The most tokens of an utterance."""
    return case.ours.manifest.model.max_target_positions // 2


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STEP", 4 * WINDOW)


def test_words_that_two_passes_agree_on(case: Case, short_steps: None) -> None:
    """The oracle decodes each pass as a recording; every token is a word."""
    full, step = round(0.8 * RATE), 4 * WINDOW
    language = german(case)
    committed: list[int] = []
    expected: list[int] = []
    texts = []

    def decoded(audio: Signal) -> list[int]:
        most = min(12 + round(30 * len(audio) / RATE), half(case))
        (result,) = case.ours.generate(
            [audio],
            prefix=committed or None,
            timestamps=False,
            num_beams=1,
            do_sample=False,
            max_new_tokens=min(most, case.ours.manifest.default_max_new_tokens),
            **language,
        )
        assert result.error is None
        end = case.ours.manifest.model.end_token_id
        return [token for token in result.tokens[len(committed) :] if token < end]

    audio = AUDIO[: full - 100]
    for length in range(step, len(audio), step):
        tokens = decoded(audio[:length])
        same = 0
        while same < min(len(tokens) - 1, len(expected)) and tokens[same] == expected[same]:
            same += 1
        committed += tokens[:same]
        expected = tokens[same:]
        texts += [tokens[:same]] if same else []
    last = decoded(audio)
    updates = checked(list(case.ours.listen([audio], **ALL, **language)))
    spoken = [case.ours.detokenize(tokens) for tokens in [*texts, last]]
    assert [update.text for update in updates] == spoken
    (segment,) = (u.segment for u in updates if u.segment is not None)
    assert segment.tokens == (*committed, *last)
    assert (segment.start, segment.end) == (0.0, round(len(audio) / RATE, 3))


@pytest.fixture(scope="session")
def whole(english: Case) -> Sequence[LiveUpdate]:
    updates = checked(list(english.ours.listen([AUDIO], **ALL)))
    assert len([u for u in updates if u.segment is not None]) > 2  # longer than a window
    return updates


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(0, len(AUDIO)), max_size=40))
def test_nothing_depends_on_chunks(
    english: Case, whole: Sequence[LiveUpdate], cuts: list[int]
) -> None:
    chunks = [AUDIO[begin:end] for begin, end in pairwise([0, *sorted(cuts), len(AUDIO)])]
    assert list(english.ours.listen(chunks, **ALL)) == whole


def test_chunks_of_a_sample_and_of_bytes(english: Case, whole: Sequence[LiveUpdate]) -> None:
    assert list(english.ours.listen(iter(AUDIO.reshape(-1, 1)), **ALL)) == whole
    integers = np.round(AUDIO * 2**15).astype(np.int16)
    expected = list(english.ours.listen([integers], **ALL))
    data = integers.tobytes()
    for size in (1, 3, 1001):
        chunks = (data[begin : begin + size] for begin in range(0, len(data), size))
        assert list(english.ours.listen(chunks, **ALL)) == expected
    assert list(english.ours.listen([integers.astype(np.float64) / 2**15], **ALL)) == expected


# Utterances.


class Scripted(VoiceDetector):
    """A detector that hears speech where a script says so."""

    script: Sequence[tuple[float, float]] = ()

    def __init__(self) -> None:
        self._windows = 0

    def probabilities(self, windows: Signal) -> Signal:
        assert windows.shape == (1, WINDOW)
        at = self._windows * WINDOW / RATE
        self._windows += 1
        return np.array([any(begin <= at < end for begin, end in self.script)], np.float32)


def hear(monkeypatch: pytest.MonkeyPatch, *script: tuple[float, float]) -> None:
    monkeypatch.setattr(live, "VoiceDetector", Scripted)
    monkeypatch.setattr(Scripted, "script", script)


def test_utterances_end_at_pauses(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    hear(monkeypatch, (0.5, 0.9), (1.9, 2.2))
    margin, pause = 2 * WINDOW, 4 * WINDOW
    monkeypatch.setattr(live, "MARGIN", margin)
    monkeypatch.setattr(live, "PAUSE", pause)
    language = german(case)
    updates = checked(list(case.ours.listen([AUDIO], vad=True, **language)))
    segments = [u.segment for u in updates if u.segment is not None]
    for segment, (begin, end) in zip(segments, Scripted.script, strict=True):
        assert segment.start == pytest.approx(begin - margin / RATE, abs=WINDOW / RATE)
        assert segment.end == pytest.approx(end + (pause - margin) / RATE, abs=WINDOW / RATE)
    short = AUDIO[: round(0.4 * RATE)]
    hear(monkeypatch, (0.0, 0.1))  # too short for speech
    assert list(case.ours.listen([short], vad=True, **language)) == []
    hear(monkeypatch, (0.0, 9.0))
    (update,) = checked(list(case.ours.listen([short], vad=True, **language)))
    (result,) = case.ours.generate(
        [short],
        timestamps=False,
        num_beams=1,
        do_sample=False,
        max_new_tokens=min(24, half(case)),
        **language,
    )
    assert update.segment is not None and update.segment.text == f" {result.text}"


def test_what_is_no_speech_is_left_out(english: Case) -> None:
    """With the real detector."""
    assert list(english.ours.listen([AUDIO, np.zeros(2 * RATE, np.float32)])) == []
    assert list(english.ours.listen([])) == []
    clip = read_audio(CLIPS / "librivox-0930.flac")
    updates = checked(list(english.ours.listen([np.zeros(RATE, np.float32), clip])))
    first = next(u.segment for u in updates if u.segment is not None)
    assert 0.5 < first.start < 1.3


def test_words_have_times(case: Case) -> None:
    updates = checked(list(case.ours.listen([AUDIO], word_timestamps=True, **ALL)))
    for update in updates:
        if update.segment is None:
            continue
        words = update.segment.words
        assert words and "".join(word.text for word in words) == update.segment.text
        assert all(word.start <= word.end for word in words)
    plain = list(case.ours.listen([AUDIO], **ALL))
    assert [u.text for u in plain] == [u.text for u in updates]
    assert all(u.segment is None or u.segment.words is None for u in plain)


def test_without_the_alignment_graph(
    english: Case, whole: Sequence[LiveUpdate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long utterances are divided at their ends."""
    graphs = english.ours.manifest.graphs
    monkeypatch.delitem(graphs, "alignment")
    updates = checked(list(english.ours.listen([AUDIO], **ALL)))
    assert [u.segment.end for u in updates if u.segment] != []
    with pytest.raises(DragomanError, match="alignment graph"):
        next(english.ours.listen([AUDIO], word_timestamps=True, **ALL))


def test_texts_around_an_utterance(multilingual: Case) -> None:
    given_texts: dict[str, Any] = {"initial_prompt": "w5 w9", "hotwords": "w8", "language": "de"}
    short = AUDIO[: RATE // 2]
    (update,) = multilingual.ours.listen([short], **given_texts, **ALL)
    most = half(multilingual)
    (result,) = multilingual.ours.generate(
        [short], num_beams=1, timestamps=False, max_new_tokens=most, **given_texts
    )
    assert update.text == f" {result.text}"
    (detected,) = multilingual.ours.listen([short], hotwords="w8", **ALL)
    (expected,) = multilingual.ours.generate(
        [short], num_beams=1, timestamps=False, max_new_tokens=most, hotwords="w8"
    )
    assert detected.text == f" {expected.text}"


# Bad input.


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (np.zeros((2, 2), np.float32), r"expected bytes or samples \[samples\], found an array"),
        ("speech", "expected bytes or samples"),
        (None, "expected bytes or samples"),
        (np.zeros(2, np.int64), "expected int16 or floating numbers, found int64"),
        (np.array([0.0, np.nan], np.float32), "expected finite numbers"),
        (b"\x00\x01\x02", "found one byte more"),
    ],
)
def test_a_wrong_chunk_ends_the_stream(
    english: Case, whole: Sequence[LiveUpdate], chunk: Any, problem: str
) -> None:
    """What was said before is transcribed."""
    found: list[LiveUpdate] = []
    with pytest.raises(AudioError, match=problem):
        found.extend(english.ours.listen(iter([AUDIO, chunk]), **ALL))
    updates: Iterator[LiveUpdate] = english.ours.listen(iter([AUDIO, chunk]), **ALL)
    for expected in whole[:-1]:
        assert next(updates) == expected


def test_what_is_for_recordings(english: Case) -> None:
    for name, value in (
        ("fallback", True),
        ("cut_at_silence", True),
        ("timestamps", True),
        ("prefix", "w5"),
        ("condition_on_previous_text", True),
        ("strict_audio", True),
    ):
        options: dict[str, Any] = {name: value}
        with pytest.raises(DragomanError, match=f"{name}: for recordings, not for live speech"):
            next(english.ours.listen([AUDIO], **options))
    list(english.ours.listen([], fallback=False, timestamps=False))


def test_a_stream_can_be_stopped(english: Case) -> None:
    cancel = threading.Event()

    def chunks() -> Iterator[Signal]:
        yield AUDIO[: RATE // 4]
        cancel.set()
        yield AUDIO

    with pytest.raises(CancelError):
        list(english.ours.listen(chunks(), cancel=cancel, **ALL))
