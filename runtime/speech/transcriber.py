"""The front end of speech models: paths, samples or features in, results out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.errors import DragomanError

from ..audio import AudioError, LogMel
from ..backends.errors import DeviceLostError
from ..backends.interface import Backend
from ..decoding.greedy import Choice
from ..decoding.options import GenerationLimits, GenerationOptions
from ..decoding.outputs import decode_or_split, outputs
from ..decoding.rejection import RejectedError
from ..decoding.results import Result, Segment, UnfinishedError
from ..format.audio import AudioFeatures
from ..format.manifest import Manifest
from ..format.speech import SpeechTokens
from ..texts.tokenizer import TextCodec, TokenizerError
from .prompts import PromptRequest
from .recording import Recording, open_recording
from .windows import WindowDecoder

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

    def generate(self, sources: Sequence[Any], options: GenerationOptions) -> list[Result]:
        limits, request = self._checked(options)
        results: dict[int, Result] = {}
        try:
            for index, result in self._results(sources, options, limits, request):
                results[index] = result
        except DeviceLostError as error:
            raise UnfinishedError(str(error), results) from error
        return [results[index] for index in range(len(sources))]

    def stream(self, source: Any, options: GenerationOptions) -> Iterator[Choice]:
        """The choices for audio of at most a window, as they are made."""
        limits, request = self._checked(options)
        try:
            recording = open_recording(source, self._log_mel)
        except AudioError as error:
            raise RejectedError(str(error)) from error
        if self._is_long(recording):
            raise RejectedError(
                f"expected audio of at most {self._log_mel.chunk_seconds:g} s to stream, found "
                f"{recording.seconds:.2f} s"
            )
        decoder = self._decoder(options, limits, request)
        language = request.language_token(self._speech)
        return decoder.choices([recording.window(self._log_mel)], [language])

    def tokenize(self, source: Any, source_language: str | None) -> list[int]:
        raise RejectedError("expected a text model, found a speech model")

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of tokens, without special tokens and timestamps; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self._speech.timestamp_begin
        return self._codec.decode([t for t in tokens if begin is None or t < begin])

    def _results(
        self,
        sources: Sequence[Any],
        options: GenerationOptions,
        limits: GenerationLimits,
        request: PromptRequest,
    ) -> Iterator[tuple[int, Result]]:
        """Results as they are completed, each with the index of its source."""
        waiting = iter(enumerate(sources))
        rows = self._rows(limits)
        opened: dict[int, Recording] = {}
        # The prompt of a window differs with and without timestamps.
        decoders = {
            timestamps: self._decoder(options, limits, request.with_timestamps(timestamps))
            for timestamps in (True, False)
        }
        while True:
            yield from self._open_more(waiting, opened, rows, request)
            if not opened:
                return
            for timestamps, decoder in decoders.items():
                batch = {
                    index: recording
                    for index, recording in opened.items()
                    if recording.timed == timestamps
                }
                for index, failure in self._decode_windows(decoder, batch).items():
                    if failure is not None or batch[index].done:
                        del opened[index]
                        yield index, failure or self._result(batch[index])

    def _open_more(
        self,
        waiting: Iterator[tuple[int, Any]],
        opened: dict[int, Recording],
        rows: int,
        request: PromptRequest,
    ) -> Iterator[tuple[int, Result]]:
        """Open recordings while there is room; yields a result for each that cannot be opened."""
        while len(opened) < rows and sum(r.seconds for r in opened.values()) < MAX_OPEN_SECONDS:
            next_source = next(waiting, None)
            if next_source is None:
                return
            index, source = next_source
            try:
                recording = open_recording(source, self._log_mel)
                if self._is_long(recording):
                    PromptRequest(timestamps=True).check(self._speech)
                recording.language = request.language_token(self._speech)
                recording.timed = request.timestamps or self._is_long(recording)
                opened[index] = recording
            except DragomanError as error:
                yield index, _rejected(str(error))

    def _decode_windows(
        self, decoder: WindowDecoder, batch: Mapping[int, Recording]
    ) -> dict[int, Result | None]:
        """Decode the next window of each recording; the result of each that failed, else None."""
        ends, begin = self._manifest.end_tokens, self._speech.timestamp_begin

        def decode(recordings: list[Recording]) -> list[Result | None]:
            languages = [recording.language for recording in recordings]
            windows = [recording.window(self._log_mel) for recording in recordings]
            choices = decoder.choices(windows, languages)
            decoded = outputs(choices, len(recordings), ends)
            for recording, output, language in zip(recordings, decoded, languages, strict=True):
                recording.language = language
                recording.add(output, begin, self._log_mel.frames)
            return [None] * len(recordings)

        failures = decode_or_split(decode, [*batch.values()], _rejected) if batch else []
        return dict(zip(batch, failures, strict=True))

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
        )

    def _checked(self, options: GenerationOptions) -> tuple[GenerationLimits, PromptRequest]:
        """The options' limits for the model, and the prompt that they request."""
        limits = options.limits(self._manifest)
        if (
            options.source_language is not None
            or options.target_language is not None
            or options.max_new_tokens_per_source_token != math.inf
        ):
            raise DragomanError(
                "source_language, target_language and max_new_tokens_per_source_token are for "
                "text models; a speech model takes language and task"
            )
        return limits, PromptRequest.of(options, self._speech)

    def _decoder(
        self, options: GenerationOptions, limits: GenerationLimits, request: PromptRequest
    ) -> WindowDecoder:
        manifest = self._manifest
        instructions = request.instructions(self._speech)
        limit = limits.max_new_tokens
        if options.max_new_tokens is None:
            # The bundle's default leaves room for the manifest's prompt; this one may be shorter.
            prompt_length = bool(self._speech.languages) + len(instructions)
            limit += len(manifest.generation.prompt) - prompt_length
        return WindowDecoder(
            self._backend,
            manifest.model,
            self._speech,
            manifest.generation.with_minimum(options.min_new_tokens),
            instructions,
            limit,
            timestamps=request.timestamps,
        )

    def _rows(self, limits: GenerationLimits) -> int:
        """The most windows in a batch."""
        positions = self._manifest.model.max_source_positions
        rows = limits.max_batch_tokens // positions
        if limits.max_batch_size is None:
            rows = self._backend.rows_that_fit(positions) or rows
        else:
            rows = min(rows, limits.max_batch_size)
        return max(1, min(rows, self._backend.limits.rows or rows))

    def _is_long(self, recording: Recording) -> bool:
        return recording.frames > self._log_mel.frames


def _rejected(reason: str) -> Result:
    return Result("", (), 0.0, "rejected", reason, segments=())
