"""Speech in, features out; and what Whisper's timestamp tokens mean. NumPy alone.

Files are read with `soundfile` and resampled with `soxr`, imported when a file is read.
"""

from .log_mel import LogMel
from .reading import Audio, AudioError, read_audio
from .segments import Segment, split_segments
from .timestamps import TimestampRule

__all__ = [
    "Audio",
    "AudioError",
    "LogMel",
    "Segment",
    "TimestampRule",
    "read_audio",
    "split_segments",
]
