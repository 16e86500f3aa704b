"""Finds speech in audio from the probabilities of a voice activity detector."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .voice_detector import RATE, WINDOW, Signal, VoiceDetector

WINDOWS_AT_ONCE = 128
"""Windows whose probabilities are computed in one call."""
SPEECH, SILENCE = 0.5, 0.35
"""Probabilities of speech at which it begins, and below which it may have ended."""
SHORTEST = RATE // 4
"""Samples; shorter speech is taken for noise."""
PAUSE = 2 * RATE
"""Samples of silence that end speech; shorter pauses are kept."""
SHORT_PAUSE, SHORT_WORD = RATE // 2, RATE // 10
"""`PAUSE` and `SHORTEST` where a recording is divided at silence: without timestamps, the text of a
window tends to end at a long pause; and a word alone may be short."""
SHORTEST_PAUSE = 3 * RATE // 10
"""Samples of silence within speech at which a recording may be divided."""
MARGIN = 2 * RATE // 5
"""Samples that are kept before and after speech."""

NEAR = 0.1
"""Seconds from where two stretches meet, which are silent; times there are inexact."""


@dataclass(frozen=True)
class Voice:
    """Where a recording has speech."""

    spans: tuple[tuple[float, float], ...]
    """Begin and end of each stretch of speech, with margins, in seconds of the recording."""
    seconds: float
    """Length of the recording."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Middle of each pause in seconds of what was kept, and its length in seconds; where stretches
    meet, the length is that of the silence between."""

    def original(self, start: float, end: float) -> tuple[float, float]:
        """Return the times in the recording of a begin and an end in what was kept of it.

        Near where two stretches meet, a begin is that of the second, and an end that of the first.
        """
        ends = list(accumulate(end - begin for begin, end in self.spans))
        first, last = bisect_right(ends, start + NEAR), bisect_left(ends, end - NEAR)
        if last < first:  # both are near
            first = last = bisect_left(ends, (start + end) / 2)
        begin = self._within(start, ends, first)
        return begin, max(begin, self._within(end, ends, last))

    def _within(self, seconds: float, ends: Sequence[float], index: int) -> float:
        index = min(index, len(ends) - 1)
        begin, end = self.spans[index]
        return round(min(end, max(begin, end - (ends[index] - seconds))), 3)


class VoiceFilter:
    """Keeps what is speech of a signal at 16 kHz that arrives in blocks.

    Args:
        pause: samples of silence that end speech, `PAUSE` or `SHORT_PAUSE`

    Raises:
        AudioError: no package with the detector is installed, or its file is not as expected.
    """

    def __init__(self, pause: int = PAUSE) -> None:
        self._pause, self._shortest = pause, SHORTEST if pause == PAUSE else SHORT_WORD
        self.spans: list[tuple[int, int]] = []
        """Begin and end of each stretch that was kept, in samples."""
        self.pauses: list[tuple[int, int]] = []
        """Middle of each pause in samples of what was kept, and its length."""
        self._kept = 0
        self._detector = VoiceDetector()

    def kept(self, blocks: Iterable[Signal]) -> Iterator[Signal]:
        """Yield the speech of a signal."""
        before = np.zeros(0, np.float32)  # the margin, while there is no speech
        held: list[Signal] = []  # speech that is short so far
        quiet: list[Signal] = []  # what may be a pause
        pauses: list[tuple[int, int]] = []  # before and within what may be speech
        begin, end, voiced, is_speech, is_long = 0, 0, 0, False, False
        for window, probability in self._windows(blocks):
            end += len(window)
            if not is_speech and probability < SPEECH:
                before = np.concatenate([before, window])[-MARGIN:]
                continue
            if not is_speech:
                is_speech, is_long, begin = True, False, end - len(window) - len(before)
                voiced, held, pauses = end - len(window), [before], []
                if self.spans:
                    between = begin - self.spans[-1][1]
                    pauses = [(self._kept, MARGIN + between + len(before))]
            if probability >= SPEECH:
                if (paused := sum(map(len, quiet))) >= SHORTEST_PAUSE:
                    middle = end - len(window) - paused // 2
                    pauses.append((self._kept + middle - begin, paused))
                held, quiet = [*held, *quiet, window], []
            elif quiet or probability < SILENCE:
                quiet.append(window)
            else:
                held.append(window)
            is_long = is_long or (not quiet and end - voiced >= self._shortest)
            if is_long:
                yield from held
                held = []
            paused = sum(map(len, quiet))
            if paused >= self._pause:
                silence = np.concatenate(quiet)
                if is_long:
                    yield silence[:MARGIN]
                    self._end_stretch(begin, end - paused + MARGIN, pauses)
                    before = silence[MARGIN:][-MARGIN:]
                else:
                    before = np.concatenate([*held, silence])[-MARGIN:]
                is_speech, held, quiet = False, [], []
        if is_speech and is_long:
            silence = np.concatenate([*quiet, np.zeros(0, np.float32)])
            yield silence[:MARGIN]
            self._end_stretch(begin, end - len(silence[MARGIN:]), pauses)

    def _end_stretch(self, begin: int, end: int, pauses: list[tuple[int, int]]) -> None:
        self.pauses[-1:] = pauses  # how long the last one was is known now
        self.spans.append((begin, end))
        self._kept += end - begin
        self.pauses.append((self._kept, self._pause))

    def voice(self, samples: int) -> Voice:
        """Return where a signal of so many samples has speech, after its last block."""
        spans = tuple((begin / RATE, end / RATE) for begin, end in self.spans)
        pauses = tuple((at / RATE, length / RATE) for at, length in self.pauses)
        return Voice(spans, samples / RATE, pauses)

    def _windows(self, blocks: Iterable[Signal]) -> Iterator[tuple[Signal, float]]:
        """Yield each window, of which the last may be shorter, and the probability of speech in it.

        However the signal is divided into blocks, the same windows are read together.
        """
        for part in _parts(blocks, WINDOWS_AT_ONCE * WINDOW):
            windows = np.pad(part, (0, -len(part) % WINDOW)).reshape(-1, WINDOW)
            probabilities = self._detector.probabilities(windows)
            for first, probability in zip(range(0, len(part), WINDOW), probabilities, strict=True):
                yield part[first : first + WINDOW], float(probability)


def _parts(blocks: Iterable[Signal], size: int) -> Iterator[Signal]:
    """Yield a signal in parts of a size, of which the last may be shorter."""
    rest = np.zeros(0, np.float32)
    for block in blocks:
        signal = np.concatenate([rest, block])
        whole = len(signal) // size * size
        yield from signal[:whole].reshape(-1, size)
        rest = signal[whole:]
    if len(rest):
        yield rest


def ending_pause(*, vad: bool, cut: bool) -> int | None:
    """Return the samples of silence that end speech; None if nothing is left out."""
    if cut:
        return SHORT_PAUSE
    return PAUSE if vad else None
