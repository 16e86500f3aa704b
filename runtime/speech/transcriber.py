"""The front end of speech models: paths, samples or features in, results out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.errors import DragomanError

from ..audio import AudioError, LogMel
from ..backends.errors import DeviceLostError
from ..backends.interface import Backend
from ..decoding.loop import Decoding, Job
from ..decoding.options import GenerationOptions
from ..decoding.rejection import NO_OUTPUT, RejectedError
from ..decoding.results import Result, Segment, UnfinishedError
from ..decoding.scheduling import Failed, Queue
from ..decoding.streaming import Choice, choices, only_strategy
from ..format.audio import AudioFeatures
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from ..front_end import planned
from ..texts.tokenizer import TextCodec, TokenizerError
from .plan import SpeechPlan
from .prompts import PromptRequest
from .recording import Recording, open_recording

MAX_OPEN_SECONDS = 2 * 3600
"""No further recording is opened while the features of this much audio are in memory: 230 MB at 80
mel bins."""


class Transcriber:
    """Decodes any number of recordings, windows of several of them together. See
    `front_end.FrontEnd`.

    Args:
        codec: None for a bundle without tokenizers
    """

    def __init__(
        self,
        manifest: Manifest,
        speech: SpeechTokens,
        features: AudioFeatures,
        backend: Backend,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._speech, self._log_mel = manifest, speech, LogMel.of(features)
        self._backend, self._codec = backend, codec

    def generate(
        self, sources: Sequence[Any], options: GenerationOptions | Sequence[GenerationOptions]
    ) -> list[Result]:
        results: dict[int, Result] = {}
        try:
            for index, result in self._results(sources, options):
                results[index] = result
        except DeviceLostError as error:
            raise UnfinishedError(str(error), results) from error
        return [results[index] for index in range(len(sources))]

    def stream(self, source: Any, options: GenerationOptions) -> Iterator[Choice]:
        """The choices for audio of at most a window, as they are made."""
        plan = self._plan(options)
        strategy = only_strategy([plan.strategy])
        try:
            recording = open_recording(source, self._log_mel)
        except AudioError as error:
            raise RejectedError(str(error)) from error
        if self._is_long(recording):
            raise RejectedError(
                f"expected audio of at most {self._log_mel.chunk_seconds:g} s to stream, found "
                f"{recording.seconds:.2f} s"
            )
        windows = plan.windows(self._manifest, self._speech, timed=plan.prompt.timestamps)
        language = plan.prompt.language_token(self._speech)
        request = windows.request(recording.window(self._log_mel), language)
        return choices(self._backend, self._manifest.model, Job(0, request, strategy))

    def tokenize(self, source: Any, source_language: str | None) -> list[int]:
        raise RejectedError("expected a text model, found a speech model")

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of tokens, without special tokens and timestamps; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self._speech.timestamp_begin
        return self._codec.decode([t for t in tokens if begin is None or t < begin])

    def _results(
        self, sources: Sequence[Any], options: GenerationOptions | Sequence[GenerationOptions]
    ) -> Iterator[tuple[int, Result]]:
        """Results as they are completed, each with the index of its source."""
        plans = list(planned(options, len(sources), self._plan))
        usable = {id(plan): plan for plan in plans if isinstance(plan, SpeechPlan)}
        rows = min(map(self._rows, usable.values()), default=1)
        tokens = rows * self._manifest.model.max_source_positions
        queue: Queue[int] = Queue(self._backend, self._manifest.model, rows=rows, tokens=tokens)
        waiting = iter(enumerate(zip(sources, plans, strict=True)))
        opened: dict[int, tuple[Recording, SpeechPlan]] = {}
        yield from self._open_more(waiting, opened, rows, queue)
        for outcome in queue.outcomes():
            result = self._add(outcome, opened)
            if result is None:
                queue.add(self._job(outcome.job.key, *opened[outcome.job.key]))
                continue
            del opened[outcome.job.key]
            yield outcome.job.key, result
            yield from self._open_more(waiting, opened, rows, queue)

    def _plan(self, options: GenerationOptions) -> SpeechPlan:
        return SpeechPlan.of(options, self._manifest, self._speech)

    def _open_more(
        self,
        waiting: Iterator[tuple[int, tuple[Any, SpeechPlan | DragomanError]]],
        opened: dict[int, tuple[Recording, SpeechPlan]],
        rows: int,
        queue: Queue[int],
    ) -> Iterator[tuple[int, Result]]:
        """Open recordings while there is room, and queue their first windows; yields a result for
        each that cannot be opened."""
        while len(opened) < rows and sum(r.seconds for r, _ in opened.values()) < MAX_OPEN_SECONDS:
            following = next(waiting, None)
            if following is None:
                return
            index, (source, plan) = following
            try:
                if isinstance(plan, DragomanError):
                    raise plan
                recording = open_recording(source, self._log_mel)
                if self._is_long(recording):
                    PromptRequest(timestamps=True).check(self._speech)
                recording.language = plan.prompt.language_token(self._speech)
                recording.timed = plan.prompt.timestamps or self._is_long(recording)
            except DragomanError as error:
                yield index, _rejected(str(error))
            else:
                opened[index] = recording, plan
                queue.add(self._job(index, recording, plan))

    def _job(self, index: int, recording: Recording, plan: SpeechPlan) -> Job[int]:
        """The job of a recording's next window."""
        windows = plan.windows(self._manifest, self._speech, timed=recording.timed)
        request = windows.request(recording.window(self._log_mel), recording.language)
        return Job(index, request, plan.strategy_of(recording.windows))

    def _add(
        self,
        outcome: Decoding[int] | Failed[int],
        opened: dict[int, tuple[Recording, SpeechPlan]],
    ) -> Result | None:
        """Add the output of a window to its recording; the result, if it was the last."""
        if isinstance(outcome, Failed):
            return _rejected(outcome.reason)
        if not outcome.drafts:
            return _rejected(NO_OUTPUT)
        recording, _ = opened[outcome.job.key]
        if outcome.found:
            (recording.language,) = outcome.found
        begin = self._speech.timestamp_begin
        recording.add(outcome.drafts[0], begin, self._log_mel.frames)
        return self._result(recording) if recording.done else None

    def _result(self, recording: Recording) -> Result:
        try:
            return self._transcript(recording)
        except TokenizerError as failure:
            return _rejected(str(failure))

    def _transcript(self, recording: Recording) -> Result:
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

    def _rows(self, plan: SpeechPlan) -> int:
        """The most rows in a batch."""
        positions = self._manifest.model.max_source_positions
        fitting = self._backend.rows_that_fit(positions)
        return plan.rows(positions, fitting, self._backend.limits.rows)

    def _is_long(self, recording: Recording) -> bool:
        return recording.frames > self._log_mel.frames


def _rejected(reason: str) -> Result:
    return Result("", (), 0.0, "rejected", reason, segments=())
