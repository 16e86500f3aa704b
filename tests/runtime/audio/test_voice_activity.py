"""Voice activity: what is kept, and times mapped back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime.audio import read_audio
from dragoman.runtime.audio.voice_activity import (
    MARGIN,
    PAUSE,
    RATE,
    SHORT_PAUSE,
    SHORT_WORD,
    SHORTEST,
    WINDOW,
    Voice,
    VoiceDetector,
    VoiceFilter,
)

CLIPS = Path(__file__).parents[2] / "real" / "clips"
Signal = NDArray[np.float32]


def kept(found: VoiceFilter, signal: Signal, block: int = 65_536) -> Signal:
    blocks = (signal[first : first + block] for first in range(0, len(signal), block))
    return np.concatenate([np.zeros(0, np.float32), *found.kept(blocks)])


class ScriptedDetector(VoiceDetector):
    """A detector that hears speech where a script says so, window by window."""

    def __init__(self, script: Sequence[float]) -> None:
        self._script = iter(script)

    def probabilities(self, windows: Signal) -> Signal:
        return np.array([next(self._script) for _ in windows])


class Scripted(VoiceFilter):
    def __init__(self, script: Sequence[float], pause: int = PAUSE) -> None:
        super().__init__(pause)
        self._detector = ScriptedDetector(script)


def script(*parts: tuple[float, float]) -> list[float]:
    """
    Args:
        parts: seconds and probability
    """
    return [p for seconds, p in parts for _ in range(round(seconds * RATE / WINDOW))]


def slow_spans(probabilities: Sequence[float], length: int, pause: int) -> list[tuple[int, int]]:
    """The definition, with the whole signal at hand."""
    found: list[tuple[int, int]] = []
    at = previous = 0
    while at < len(probabilities):
        if probabilities[at] < 0.5:
            at += 1
            continue
        first, last, quiet = at, at, None
        while at < len(probabilities):
            if probabilities[at] >= 0.5:
                last, quiet = at, None
            elif quiet is None and probabilities[at] < 0.35:
                quiet = at
            elif quiet is None:
                last = at
            at += 1
            if quiet is not None and (at - quiet) * WINDOW >= pause:
                break
        end_of_speech = (quiet if quiet is not None else at) * WINDOW
        # Long enough up to where silence begins, as in Silero's own function.
        if (last + 1 - first) * WINDOW >= (SHORTEST if pause == PAUSE else SHORT_WORD):
            begin = max(previous, first * WINDOW - MARGIN)
            found.append((begin, min(end_of_speech + MARGIN, length)))
            previous = found[-1][1]
    return found


@pytest.mark.parametrize(
    "parts",
    [
        [(1, 0.1), (1, 0.9), (1, 0.1)],
        [(1, 0.1), (0.1, 0.9), (3, 0.1)],  # a click
        [(0.2, 0.1), (1, 0.9), (1.5, 0.1), (1, 0.9), (3, 0.1), (1, 0.9)],
        [(1, 0.9), (2.1, 0.1), (1, 0.9), (2.5, 0.2), (0.1, 0.9), (2.5, 0.2), (1, 0.8)],
        [(1, 0.9), (3, 0.4), (1, 0.1), (1, 0.45), (1, 0.1), (2, 0.9)],
        [(3, 0.0)],
        [(0.05, 0.9)],
    ],
)
@pytest.mark.parametrize("pause", [PAUSE, SHORT_PAUSE])
def test_what_is_kept(parts: list[tuple[float, float]], pause: int) -> None:
    probabilities = script(*parts)
    length = len(probabilities) * WINDOW - 100  # the last window is shorter
    signal = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    expected = slow_spans(probabilities, length, pause)
    for block in (65_536, 700, length):
        found = Scripted(probabilities, pause)
        result = kept(found, signal, block)
        assert found.spans == expected
        parts_of = [signal[begin:end] for begin, end in expected]
        assert np.array_equal(result, np.concatenate([np.zeros(0, np.float32), *parts_of]))


def test_pauses_between_stretches_have_their_length() -> None:
    probabilities = script(
        (1, 0.1), (2, 0.9), (3, 0.1), (0.064, 0.9), (1, 0.1), (2, 0.9), (0.6, 0.1), (1, 0.9)
    )
    found = Scripted(probabilities, SHORT_PAUSE)
    kept(found, np.zeros(len(probabilities) * WINDOW, np.float32))
    first, second = found.spans[0], found.spans[1]
    ends = np.cumsum([end - begin for begin, end in found.spans])
    assert [at for at, _ in found.pauses] == ends.tolist()
    # 3 s of silence, a click, which is none, and another second.
    lengths = [round(length / RATE, 1) for _, length in found.pauses]
    assert lengths == [4.1, 0.6, 0.5]
    assert found.pauses[0][1] == second[0] - first[1] + 2 * MARGIN


def test_random_scripts() -> None:
    generator = np.random.default_rng(5)
    for _ in range(30):
        parts = [
            (float(generator.uniform(0, 2.6)), float(generator.choice([0.1, 0.4, 0.6, 0.9])))
            for _ in range(generator.integers(1, 9))
        ]
        probabilities = script(*parts)
        signal = generator.standard_normal(len(probabilities) * WINDOW).astype(np.float32)
        for pause in (PAUSE, SHORT_PAUSE):
            found = Scripted(probabilities, pause)
            kept(found, signal, int(generator.integers(1, 5000)))
            assert found.spans == slow_spans(probabilities, len(signal), pause), parts


def test_noise_is_no_speech_and_clips_are() -> None:
    generator, time = np.random.default_rng(0), np.arange(10 * RATE) / RATE
    for noise in (
        np.zeros(10 * RATE),
        0.1 * generator.standard_normal(10 * RATE),
        0.3 * np.sin(2 * np.pi * 50 * time) + 0.1 * np.sin(2 * np.pi * 100 * time),
        0.3 * np.sin(2 * np.pi * 440 * time),
    ):
        assert len(kept(VoiceFilter(), noise.astype(np.float32))) == 0
    speech = read_audio(CLIPS / "librivox-0930.flac")
    silence = np.zeros(5 * RATE, np.float32)
    found = VoiceFilter()
    kept(found, np.concatenate([silence, speech, silence, speech]))
    (first, second), length = found.spans, len(speech)
    assert abs(first[0] - 5 * RATE) < RATE and abs(first[1] - (5 * RATE + length)) < RATE
    assert abs(second[0] - (10 * RATE + length)) < RATE and second[1] == 10 * RATE + 2 * length


def test_times_are_those_of_the_recording() -> None:
    voice = Voice(((1.0, 3.0), (10.0, 11.0), (20.0, 25.0)), 30.0)
    for start, end, expected in (
        (0.0, 0.5, (1.0, 1.5)),
        (0.0, 0.0, (1.0, 1.0)),
        (1.85, 1.95, (2.85, 2.95)),
        (1.5, 2.05, (2.5, 3.0)),  # an end beyond the first stretch
        (1.95, 2.5, (10.0, 10.5)),  # a begin before the second
        (1.92, 2.0, (2.92, 3.0)),  # both near: the middle is in the first
        (1.94, 2.06, (2.94, 3.0)),
        (2.0, 2.08, (10.0, 10.08)),
        (1.5, 2.5, (2.5, 10.5)),
        (2.95, 8.0, (20.0, 25.0)),
        (8.0, 9.0, (25.0, 25.0)),
    ):
        assert voice.original(start, end) == expected, (start, end)
