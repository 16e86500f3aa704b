"""The log-mel spectrogram of Whisper (Radford et al., 2022, section 2.2)."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dragoman.settings.speech import AudioFeatures

Signal = NDArray[np.float32]
Features = NDArray[np.float32]

LEAST_POWER = np.float32(1e-10)
DYNAMIC_RANGE = np.float32(8)
"""Dynamic range in powers of ten; lower log power is clipped."""
BLOCK = 128
"""Number of frames transformed together, so that they fit into a core's cache."""


class LogMel(AudioFeatures):
    """Computes the features that `AudioFeatures` describes.

    Signals are finite mono samples, float32 [samples], at `sampling_rate`, as from `read_audio`.
    Features are float32 [bins, frames]; frame i is centred on sample i * hop.
    """

    @classmethod
    def of(cls, settings: AudioFeatures) -> LogMel:
        """Create the transform from the settings of a manifest."""
        return cls(**vars(settings))

    def chunk(self, signal: Signal) -> Features:
        """Compute the features of the first window of a signal, padded with zeros: [bins, frames].

        Frames with only padding are not computed.
        """
        padded = np.zeros(min(len(signal) + self.n_fft, self.samples), np.float32)
        padded[: len(signal)] = signal[: len(padded)]
        log_power = np.full((self.bins, self.frames), np.log10(LEAST_POWER), np.float32)
        framed = np.pad(padded, self.n_fft // 2, mode="reflect")
        self._log_power(framed, log_power[:, : len(padded) // self.hop])
        return _normalized(log_power)

    def whole(self, blocks: Iterable[Signal]) -> Features:
        """Compute the features of a signal of any length: [bins, samples // hop].

        The maximum of the whole signal sets the floor, and the end is padded by reflection.
        """
        half, step = self.n_fft // 2, BLOCK * self.hop
        rows = np.empty((0, self.bins), np.float32)  # grows in place
        held, samples, begun = np.empty(0, np.float32), 0, False

        def compute(frames: int) -> None:
            nonlocal held
            rows.resize((len(rows) + frames, self.bins), refcheck=False)
            if frames:
                self._log_power(held, rows[-frames:].T)
            held = held[frames * self.hop :]

        for block in blocks:
            samples += len(block)
            held = np.concatenate([held, block])
            if not begun and len(held) > self.n_fft + half:
                held, begun = np.concatenate([held[half:0:-1], held]), True
            # What is held is never too little to be reflected at the end.
            complete = (len(held) - self.n_fft - half) // step * BLOCK if begun else 0
            if complete > 0:
                compute(complete)
        held = np.pad(held, (0 if begun else half, half), mode="reflect")
        compute(samples // self.hop - len(rows))
        return _normalized(rows.T)

    def segment(self, features: Features, begin: int) -> Features:
        """Return the window that begins at a frame of the features from `whole`: [bins, frames].

        The padding is 0, unlike features of silence, as in Hugging Face's long-form `generate`.
        """
        segment = np.zeros((self.bins, self.frames), np.float32)
        left = features[:, begin : begin + self.frames]
        segment[:, : left.shape[1]] = left
        return segment

    def _log_power(self, padded: Signal, out: Features) -> None:
        frames = sliding_window_view(padded, self.n_fft)[:: self.hop]
        window = _hann_window(self.n_fft)
        frequencies, weights, begins = _triangles(self.bins, self.n_fft, self.sampling_rate)
        for begin in range(0, out.shape[1], BLOCK):
            block = out[:, begin : begin + BLOCK]
            spectrum = np.fft.rfft(frames[begin : begin + block.shape[1]] * window)
            power = np.square(spectrum.real) + np.square(spectrum.imag)
            # NumPy 1 transforms in float64. After a matrix product, the threads of the BLAS library
            # would spin and take cores from the encoder, which runs next.
            filtered = power.T[frequencies].astype(np.float32, copy=False)
            np.add.reduceat(filtered * weights, begins, axis=0, out=block)
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
    """Return the periodic Hann window."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    return window.astype(np.float32)


@functools.cache
def _triangles(
    bins: int, n_fft: int, sampling_rate: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """Return the non-zero weights of the mel filters.

    Returns:
        the frequencies of all filters in a row, their weights [numbers, 1], and the index where
        each filter begins
    """
    filters = _mel_filters(bins, n_fft, sampling_rate)
    used = filters > 0
    used[~used.any(axis=1), 0] = True  # no sum is empty
    rows, frequencies = np.nonzero(used)
    return frequencies, filters[used][:, np.newaxis], np.searchsorted(rows, np.arange(bins))


@functools.cache
def _mel_filters(bins: int, n_fft: int, sampling_rate: int) -> NDArray[np.float32]:
    """Return triangular filters of equal area on Slaney's mel scale: [bins, n_fft // 2 + 1].

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


def sound(rate: int, seconds: float) -> NDArray[np.float32]:
    """Generate sound for a speech model: syllables with a gliding pitch and three formants.

    Every version of NumPy gives the same samples but for rounding.

    Returns:
        [samples], in [-1, 1]
    """
    time = np.arange(max(1, round(seconds * rate)), dtype=np.float64) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    signal = np.zeros(len(time))
    for harmonic in range(1, 21):
        frequency = harmonic * pitch
        gain = sum(
            np.exp(-(((frequency - formant * (1 + 0.2 * np.sin(2 * np.pi * k * time))) / 150) ** 2))
            for k, formant in ((1.3, 500), (0.9, 1500), (1.1, 2500))
        )
        signal += gain * np.sin(harmonic * phase)
    loudness = np.maximum(0, np.sin(2 * np.pi * 2 * time)) ** 0.5
    return np.asarray(np.clip(0.2 * loudness * signal, -1, 1), np.float32)
