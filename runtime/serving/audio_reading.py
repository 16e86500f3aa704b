"""Reads the audio of requests, of which it bounds the amount in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from dragoman.settings.speech import AudioFeatures

from ..audio import AudioError, LogMel
from ..speech.recording import Spectrogram, read_spectrogram
from .engine.request_queue import OverloadedError

RETRY_AFTER = 5.0
"""Seconds after which a client may send refused audio again."""
READING = 4
"""Requests whose audio is read at the same time; others wait for the next block of one of them."""


class _Turns:
    """Lets some threads work at a time, in order."""

    def __init__(self, count: int) -> None:
        self._free, self._waiting = count, deque[threading.Event]()
        self._lock = threading.Lock()

    def take(self) -> None:
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(turn)
        turn.wait()

    def give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class OpenAudio:
    """The audio of a request.

    Attributes:
        seconds: how much of it has been read
        is_closed: whether nobody waits for it
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_closed = False


class AudioReader:
    """Reads audio files in any thread, block by block.

    Requests take turns, so that a short clip does not wait for long recordings.

    Args:
        longest: maximum seconds of a request
        most: maximum seconds of all open requests; beyond it, only the oldest is read on
    """

    def __init__(self, longest: float, most: float) -> None:
        self._longest, self._most = longest, most
        self._open: dict[OpenAudio, None] = {}  # in the order in which they were opened
        self._lock, self._turns = threading.Lock(), _Turns(READING)

    def read(
        self,
        audio: OpenAudio,
        files: Sequence[bytes],
        settings: AudioFeatures,
        *,
        pause: int | None = None,
    ) -> list[Spectrogram]:
        """Read the files of a request, which count as open until `close`.

        Args:
            pause: samples of silence that end speech; None: silence is kept

        Raises:
            AudioError: a file is not audio, the request is closed, or its files are too long.
            OverloadedError: too much audio of other requests is open.
        """
        log_mel = LogMel.of(settings)

        def count(seconds: float) -> None:
            self._count(audio, seconds)
            self._turns.give()
            self._turns.take()

        self._turns.take()
        try:
            return [
                read_spectrogram(
                    file,
                    log_mel,
                    pause=pause,
                    longest=max(0.0, self._longest - audio.seconds),
                    on_block=count,
                )
                for file in files
            ]
        finally:
            self._turns.give()

    def close(self, audio: OpenAudio) -> None:
        """Forget the audio of a request, whose reading stops at the next block."""
        with self._lock:
            self._open.pop(audio, None)
            audio.seconds, audio.is_closed = 0.0, True

    def _count(self, audio: OpenAudio, seconds: float) -> None:
        with self._lock:
            if audio.is_closed:
                raise AudioError("the request was closed while its audio was read")
            self._open.setdefault(audio)
            total = sum(each.seconds for each in self._open)
            # The oldest request is accepted, so that of several at least one is finished.
            if next(iter(self._open)) is not audio and total + seconds > self._most:
                raise OverloadedError(
                    f"too much audio is open: expected at most {self._most:g} s of all requests; "
                    "try again later",
                    RETRY_AFTER,
                )
            audio.seconds += seconds
