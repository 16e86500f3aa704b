"""How audio becomes the source of a model: the settings, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AudioFeatures:
    """A log-mel spectrogram's settings. `runtime.audio.LogMel` computes it.

    Attributes:
        bins: mel bands from 0 Hz to half the sampling rate; 80, or 128 from Whisper large-v3 on
        sampling_rate: samples per second
        n_fft: samples in a frame, an even number
        hop: samples from a frame to the next
        chunk_seconds: the length of the encoder's window
    """

    bins: int = 80
    sampling_rate: int = 16_000
    n_fft: int = 400
    hop: int = 160
    chunk_seconds: float = 30

    @property
    def samples(self) -> int:
        """Samples in a window: 480000."""
        return round(self.chunk_seconds * self.sampling_rate)

    @property
    def frames(self) -> int:
        """Frames in a window: 3000."""
        return self.samples // self.hop

    def problems(self) -> list[str]:
        """Values out of range, a line each."""
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
                f"hop: expected a divisor of the {self.samples} samples of a window, found "
                f"{self.hop}"
            )
        return problems
