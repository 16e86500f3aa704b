"""Reads audio and computes the features that a speech model takes.

Features need only NumPy. FFmpeg (`av`) and `soxr` are imported when a file is read.
"""

from .ffmpeg import AudioError
from .log_mel import LogMel
from .reading import Audio, AudioWarning, read_audio, read_blocks

__all__ = ["Audio", "AudioError", "AudioWarning", "LogMel", "read_audio", "read_blocks"]
