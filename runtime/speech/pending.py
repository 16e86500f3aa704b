"""A recording on its way to its result. See `front_end.Pending`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..audio import LogMel
from ..decoding.loop import Decoding, Job
from ..decoding.rejection import NO_OUTPUT
from ..decoding.results import Result, Segment
from ..decoding.scheduling import Failed
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from ..texts.tokenizer import TextCodec, TokenizerError
from .plan import SpeechPlan
from .recording import Recording


class Windows:
    """Windows of recordings -> jobs; their outputs -> transcripts.

    Args:
        codec: None for a bundle without tokenizers
    """

    def __init__(
        self, manifest: Manifest, speech: SpeechTokens, log_mel: LogMel, codec: TextCodec | None
    ) -> None:
        self._manifest, self._speech, self._log_mel = manifest, speech, log_mel
        self._codec = codec

    def job(self, recording: Recording, plan: SpeechPlan) -> Job[int]:
        """The job of a recording's next window."""
        windows = plan.windows(self._manifest, self._speech, timed=recording.timed)
        request = windows.request(recording.window(self._log_mel), recording.language)
        return Job(0, request, plan.strategy_of(recording.windows))

    def add(self, recording: Recording, outcome: Decoding[Any]) -> None:
        """Add the output for a recording's window to it."""
        if outcome.found:
            (recording.language,) = outcome.found
        begin = self._speech.timestamp_begin
        recording.add(outcome.drafts[0], begin, self._log_mel.frames)

    def transcript(self, recording: Recording) -> Result:
        """
        Raises:
            TokenizerError: the tokenizer fails on the tokens.
        """
        tokens = tuple(token for segment in recording.segments for token in segment.tokens)
        text = self.text(tokens)
        segments: tuple[Segment, ...] = (Segment(0.0, recording.seconds, text, tokens),)
        if recording.timed:
            segments = tuple(
                Segment(s.start, s.end, self.text(s.tokens), s.tokens) for s in recording.segments
            )
        return Result(
            text,
            tokens,
            recording.log_probability,
            "end" if recording.ended else "length",
            segments=segments,
            language=self._speech.language_of(recording.language),
            end_token=recording.end_token,
            score=recording.score,
        )

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of tokens, without special tokens and timestamps; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self._speech.timestamp_begin
        return self._codec.decode([t for t in tokens if begin is None or t < begin])


class PendingSpeech:
    """One job for each window, the next one where the output for the last ends."""

    given: Sequence[int] = ()

    def __init__(self, recording: Recording, plan: SpeechPlan, windows: Windows) -> None:
        self._recording, self._plan, self._windows = recording, plan, windows
        self.jobs = [windows.job(recording, plan)]

    @property
    def seconds(self) -> float:
        return self._recording.seconds

    def add(self, number: int, outcome: Decoding[Any] | Failed[Any]) -> Result | Job[int]:
        if isinstance(outcome, Failed):
            return rejected(outcome.reason)
        if not outcome.drafts:
            return rejected(NO_OUTPUT)
        self._windows.add(self._recording, outcome)
        if not self._recording.done:
            return self._windows.job(self._recording, self._plan)
        try:
            return self._windows.transcript(self._recording)
        except TokenizerError as failure:
            return rejected(str(failure))


def rejected(reason: str) -> Result:
    return Result("", (), 0.0, "rejected", reason, segments=())
