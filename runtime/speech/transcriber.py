"""The front end of speech models: paths, samples or features in, results out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.errors import DragomanError

from ..audio import AudioError, LogMel
from ..backends.errors import DeviceLostError
from ..backends.interface import Backend
from ..decoding.loop import Job
from ..decoding.options import GenerationOptions
from ..decoding.rejection import RejectedError
from ..decoding.results import Result, UnfinishedError
from ..decoding.scheduling import Queue
from ..decoding.streaming import Choice, choices, only_strategy
from ..format.audio import AudioFeatures
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from ..front_end import planned
from ..texts.tokenizer import TextCodec
from .pending import PendingSpeech, Windows, rejected
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
        self._backend = backend
        self._windows = Windows(manifest, speech, self._log_mel, codec)

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

    def begin(self, source: Any, options: GenerationOptions) -> PendingSpeech | Result:
        return self._begin(source, self._plan(options))

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
        return self._windows.text(tokens)

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
        opened: dict[int, PendingSpeech] = {}
        yield from self._open_more(waiting, opened, rows, queue)
        for outcome in queue.outcomes():
            index = outcome.job.key
            following = opened[index].add(0, outcome)
            if isinstance(following, Job):
                queue.add(Job(index, following.request, following.strategy))
                continue
            del opened[index]
            yield index, following
            yield from self._open_more(waiting, opened, rows, queue)

    def _plan(self, options: GenerationOptions) -> SpeechPlan:
        return SpeechPlan.of(options, self._manifest, self._speech)

    def _open_more(
        self,
        waiting: Iterator[tuple[int, tuple[Any, SpeechPlan | DragomanError]]],
        opened: dict[int, PendingSpeech],
        rows: int,
        queue: Queue[int],
    ) -> Iterator[tuple[int, Result]]:
        """Open recordings while there is room, and queue their first windows; yields a result for
        each that cannot be opened.
        """
        while len(opened) < rows and sum(p.seconds for p in opened.values()) < MAX_OPEN_SECONDS:
            following = next(waiting, None)
            if following is None:
                return
            index, (source, plan) = following
            begun = self._begin(source, plan)
            if isinstance(begun, PendingSpeech):
                opened[index] = begun
                for job in begun.jobs:
                    queue.add(Job(index, job.request, job.strategy))
            else:
                yield index, begun

    def _begin(self, source: Any, plan: SpeechPlan | DragomanError) -> PendingSpeech | Result:
        try:
            if isinstance(plan, DragomanError):
                raise plan
            recording = open_recording(source, self._log_mel)
            if self._is_long(recording):
                PromptRequest(timestamps=True).check(self._speech)
        except DragomanError as error:
            return rejected(str(error))
        recording.language = plan.prompt.language_token(self._speech)
        recording.timed = plan.prompt.timestamps or self._is_long(recording)
        return PendingSpeech(recording, plan, self._windows)

    def _rows(self, plan: SpeechPlan) -> int:
        """The most rows in a batch."""
        positions = self._manifest.model.max_source_positions
        fitting = self._backend.rows_that_fit(positions)
        return plan.rows(positions, fitting, self._backend.limits.rows)

    def _is_long(self, recording: Recording) -> bool:
        return recording.frames > self._log_mel.frames
