"""The log-mel spectrogram of Whisper (Radford et al., 2022, section 2.2)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..format.audio import AudioFeatures

Signal = NDArray[np.float32]
Features = NDArray[np.float32]

LEAST_POWER = np.float32(1e-10)
DYNAMIC_RANGE = np.float32(8)
"""Power is raised to at most this far below the loudest of a signal, in powers of ten."""
BLOCK = 128
"""Frames transformed together: as many as fit into a core's cache."""


class LogMel(AudioFeatures):
    """Computes the features that `AudioFeatures` describes.

    Signals are float32 [samples], mono, at `sampling_rate`, finite: what `read_audio` returns.
    Features are float32 [bins, frames]; frame i is centred on sample i * hop.
    """

    @classmethod
    def of(cls, settings: AudioFeatures) -> LogMel:
        """With the settings that a manifest states."""
        return cls(**vars(settings))

    def chunk(self, signal: Signal) -> Features:
        """Features of the first window of a signal, padded with zeros: [bins, frames].

        Frames of padding alone are not computed, so that a short signal costs little.
        """
        heard = np.zeros(min(len(signal) + self.n_fft, self.samples), np.float32)
        heard[: len(signal)] = signal[: len(heard)]
        log_power = np.full((self.bins, self.frames), np.log10(LEAST_POWER), np.float32)
        self._log_power(heard, log_power[:, : len(heard) // self.hop])
        return _normalized(log_power)

    def whole(self, signal: Signal) -> Features:
        """Features of a signal of any length: [bins, samples // hop].

        They differ from those of its windows: the loudest frame of the whole signal sets the floor,
        and the end is continued by reflection, not by zeros.
        """
        log_power = np.empty((self.bins, len(signal) // self.hop), np.float32)
        self._log_power(signal, log_power)
        return _normalized(log_power)

    def segment(self, features: Features, begin: int) -> Features:
        """The window that begins at a frame of the features from `whole`: [bins, frames].

        Beyond the end it is 0, as in Hugging Face's long-form `generate`, although silence has
        another value.
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
        frequencies, weights, begins = _triangles(self.bins, self.n_fft, self.sampling_rate)
        for begin in range(0, out.shape[1], BLOCK):
            block = out[:, begin : begin + BLOCK]
            spectrum = np.fft.rfft(frames[begin : begin + block.shape[1]] * window)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            # NumPy 1 transforms in float64. A matrix product would leave the threads of a BLAS
            # spinning, and the encoder, which runs next, without their cores.
            heard = power.T[frequencies].astype(np.float32, copy=False)
            np.add.reduceat(heard * weights, begins, axis=0, out=block)
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
def _triangles(
    bins: int, n_fft: int, sampling_rate: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """The filters without their zeros: the frequencies of all of them one after another, their
    weights [numbers, 1], and where each filter begins.
    """
    filters = _mel_filters(bins, n_fft, sampling_rate)
    used = filters > 0
    used[~used.any(axis=1), 0] = True  # every sum is of something
    rows, frequencies = np.nonzero(used)
    return frequencies, filters[used][:, np.newaxis], np.searchsorted(rows, np.arange(bins))


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
