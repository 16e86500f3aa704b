"""Reads audio and computes the features that a speech model takes.

Features need only NumPy. Files are read with `soundfile` and resampled with `soxr`, which are
imported when a file is read.
"""

from .log_mel import LogMel
from .reading import Audio, AudioError, read_audio

__all__ = ["Audio", "AudioError", "LogMel", "read_audio"]
