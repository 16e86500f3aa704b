"""The log-mel spectrogram of Whisper (Radford et al., 2022, section 2.2)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Signal = NDArray[np.float32]
Features = NDArray[np.float32]

LEAST_POWER = np.float32(1e-10)
DYNAMIC_RANGE = np.float32(8)
"""What is further below the loudest of a signal, in powers of ten, is raised to that."""
BLOCK = 128
"""Frames transformed together: as many as a core's cache holds."""


@dataclass(frozen=True)
class LogMel:
    """How a signal becomes features; plain data, as a bundle's manifest states it.

    Signals are float32 [samples], mono, at `sampling_rate`, finite: what `read_audio` gives.
    Features are float32 [bins, frames]; frame i is centred on sample i * hop.

    Attributes:
        bins: mel bands from 0 Hz to half the sampling rate; 80, or 128 from large-v3 on
        sampling_rate: samples per second
        n_fft: samples in a frame, an even number
        hop: samples from a frame to the next
        chunk_seconds: what the encoder sees at once
    """

    bins: int = 80
    sampling_rate: int = 16_000
    n_fft: int = 400
    hop: int = 160
    chunk_seconds: float = 30

    @property
    def samples(self) -> int:
        """Samples in a chunk: 480000."""
        return round(self.chunk_seconds * self.sampling_rate)

    @property
    def frames(self) -> int:
        """Frames in a chunk: 3000."""
        return self.samples // self.hop

    def problems(self) -> list[str]:
        """What is wrong with values that were read from somewhere; nothing else checks them."""
        problems = [
            f"{name}: expected at least 1, found {value}"
            for name, value in vars(self).items()
            if name != "chunk_seconds" and value < 1
        ]
        if not 0 < self.chunk_seconds < math.inf:
            problems.append(f"chunk_seconds: expected over 0, found {self.chunk_seconds}")
        if self.n_fft % 2:
            problems.append(f"n_fft: expected an even number, found {self.n_fft}")
        if not problems and (self.samples % self.hop or not self.samples):
            problems.append(
                f"hop: expected a divisor of the {self.samples} samples of a chunk, found "
                f"{self.hop}"
            )
        return problems

    def chunk(self, signal: Signal) -> Features:
        """Features of the first chunk of a signal, zeros appended to a shorter one: [bins, frames].

        Frames that see zeros only are not computed, so that a short signal costs little.
        """
        heard = np.zeros(min(len(signal) + self.n_fft, self.samples), np.float32)
        heard[: len(signal)] = signal[: len(heard)]
        log_power = np.full((self.bins, self.frames), np.log10(LEAST_POWER), np.float32)
        self._log_power(heard, log_power[:, : len(heard) // self.hop])
        return _normalized(log_power)

    def whole(self, signal: Signal) -> Features:
        """Features of a signal of any length: [bins, samples // hop].

        They differ from those of its chunks: it is the loudest of the whole that sets the floor,
        and reflection, not zeros, that continues its end.
        """
        log_power = np.empty((self.bins, len(signal) // self.hop), np.float32)
        self._log_power(signal, log_power)
        return _normalized(log_power)

    def segment(self, features: Features, begin: int) -> Features:
        """The chunk that begins at a frame of features of `whole`: [bins, frames].

        What is beyond the end is 0, which is not what silence gives; so does Hugging Face's
        long-form `generate`.
        """
        segment = np.zeros((self.bins, self.frames), np.float32)
        left = features[:, begin : begin + self.frames]
        segment[:, : left.shape[1]] = left
        return segment

    def _log_power(self, signal: Signal, out: Features) -> None:
        """Write the logarithm to base 10 of the power of the first frames to `out`."""
        padded = np.pad(signal, self.n_fft // 2, mode="reflect")
        frames = sliding_window_view(padded, self.n_fft)[:: self.hop]
        window = _hann_window(self.n_fft)
        filters = _mel_filters(self.bins, self.n_fft, self.sampling_rate)
        for begin in range(0, out.shape[1], BLOCK):
            block = out[:, begin : begin + BLOCK]
            spectrum = np.fft.rfft(frames[begin : begin + block.shape[1]] * window)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            # NumPy 1 transforms in float64.
            np.matmul(filters, power.T.astype(np.float32, copy=False), out=block)
        np.maximum(out, LEAST_POWER, out=out)
        np.log10(out, out=out)


def _normalized(log_power: Features) -> Features:
    """Limit the dynamic range and scale to about -1 to 1, in place."""
    loudest = log_power.max(initial=np.log10(LEAST_POWER))
    np.maximum(log_power, loudest - DYNAMIC_RANGE, out=log_power)
    log_power += 4
    log_power /= 4
    return log_power


@functools.cache
def _hann_window(size: int) -> NDArray[np.float32]:
    """Periodic: one period of a raised cosine, without its last point."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window.astype(np.float32)


@functools.cache
def _mel_filters(bins: int, n_fft: int, sampling_rate: int) -> NDArray[np.float32]:
    """Triangles of equal area, evenly spaced on Slaney's mel scale: [bins, n_fft // 2 + 1].

    Source: Slaney, Auditory Toolbox, 1998.
    """
    frequencies = np.arange(n_fft // 2 + 1) * sampling_rate / n_fft
    corners = _mel_to_hertz(np.linspace(0, _hertz_to_mel(sampling_rate / 2), bins + 2))
    widths = np.diff(corners)[:, np.newaxis]
    distances = corners[:, np.newaxis] - frequencies
    rising, falling = -distances[:-2] / widths[:-1], distances[2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    filters = triangles * 2 / (corners[2:] - corners[:-2])[:, np.newaxis]
    return filters.astype(np.float32)


# Slaney's scale: 200/3 Hz a mel up to 1000 Hz, which is mel 15; then 27 mels for a factor of 6.4.
_KNEE_HERTZ, _KNEE_MEL = 1000.0, 15.0
_MELS_PER_LOG = 27 / np.log(6.4)


def _hertz_to_mel(hertz: float) -> float:
    if hertz < _KNEE_HERTZ:
        return hertz * _KNEE_MEL / _KNEE_HERTZ
    return float(_KNEE_MEL + np.log(hertz / _KNEE_HERTZ) * _MELS_PER_LOG)


def _mel_to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = _KNEE_HERTZ * np.exp((mel - _KNEE_MEL) / _MELS_PER_LOG)
    return np.where(mel < _KNEE_MEL, mel * _KNEE_HERTZ / _KNEE_MEL, logarithmic)
