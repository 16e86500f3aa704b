"""The front end of speech models: paths, samples or features in, results out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dragoman.errors import DragomanError

from ..audio import AudioError, LogMel
from ..backends import Backend
from ..backends.errors import DeviceLostError
from ..decoding import each_if_not_all, outputs
from ..greedy import Choice
from ..manifest import Manifest
from ..options import GenerationOptions
from ..results import Result, Segment
from ..tokenizer import TextCodec
from .facts import Speech, SpeechOptions
from .recording import Recording, open_recording
from .windows import WindowDecoder

HELD_SECONDS = 2 * 3600
"""No further recording is opened while features of so much are held: at 80 bins, 230 MB."""


class Transcriber:
    """Decodes any number of recordings, windows of several of them together.

    Args:
        codec: None for a bundle without tokenizers
    """

    def __init__(
        self,
        manifest: Manifest,
        speech: Speech,
        log_mel: LogMel,
        backend: Backend,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._speech, self._log_mel = manifest, speech, log_mel
        self._backend, self._codec = backend, codec

    def generate(
        self,
        sources: Sequence[Any],
        options: GenerationOptions,
        asked: SpeechOptions,
        limit: int | None,
    ) -> list[Result]:
        """
        Args:
            limit: the most tokens of a window; None: what the bundle's default, which is for the
                longest prompt, leaves room for

        Raises:
            DragomanError: the model cannot do what is asked.
            DeviceLostError: the device failed for good; has the results that were finished.
        """
        asked.check(self._speech)
        results: dict[int, Result] = {}
        try:
            for index, result in self._results(sources, options, asked, limit):
                results[index] = result
        except DeviceLostError as error:
            error.finished = results
            raise
        return [results[index] for index in range(len(sources))]

    def stream(
        self, source: Any, options: GenerationOptions, asked: SpeechOptions, limit: int | None
    ) -> Iterator[Choice]:
        """The choices for audio of a window at most, as they are made.

        Raises:
            AudioError: it cannot be read, or is longer.
            DragomanError: the model cannot do what is asked.
        """
        asked.check(self._speech)
        recording = open_recording(source, self._log_mel)
        if self._is_long(recording):
            raise AudioError(
                f"expected audio of at most {self._log_mel.chunk_seconds:g} s to stream, found "
                f"{recording.seconds:.2f} s"
            )
        decoder = self._decoder(options, asked, limit, timestamps=asked.timestamps)
        language = self._speech.language_token(asked)
        return decoder.choices([recording.window(self._log_mel)], [language])

    def text(self, tokens: Sequence[int]) -> str | None:
        """Special tokens and times left out; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self._speech.timestamp_begin
        return self._codec.decode([t for t in tokens if begin is None or t < begin])

    def _results(
        self,
        sources: Sequence[Any],
        options: GenerationOptions,
        asked: SpeechOptions,
        limit: int | None,
    ) -> Iterator[tuple[int, Result]]:
        """Results as they are done, each with the index of its source."""
        waiting = iter(enumerate(sources))
        rows = self._rows(options)
        opened: dict[int, Recording] = {}
        # With times or without, the prompt of a window differs.
        decoders = {
            timestamps: self._decoder(options, asked, limit, timestamps=timestamps)
            for timestamps in (True, False)
        }
        while True:
            yield from self._open_more(waiting, opened, rows, asked)
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
        asked: SpeechOptions,
    ) -> Iterator[tuple[int, Result]]:
        """Open recordings while there is room; the results of those that cannot be opened."""
        while len(opened) < rows and sum(r.seconds for r in opened.values()) < HELD_SECONDS:
            following = next(waiting, None)
            if following is None:
                return
            index, source = following
            try:
                recording = open_recording(source, self._log_mel)
                if self._is_long(recording):
                    SpeechOptions(timestamps=True).check(self._speech)
                recording.language = self._speech.language_token(asked)
                recording.timed = asked.timestamps or self._is_long(recording)
                opened[index] = recording
            except DragomanError as error:
                yield index, _rejected(str(error))

    def _decode_windows(
        self, decoder: WindowDecoder, batch: Mapping[int, Recording]
    ) -> dict[int, Result | None]:
        """Decode the next window of each; the results of those for which that failed."""
        end, begin = self._manifest.model.end_token_id, self._speech.timestamp_begin

        def decode(recordings: list[Recording]) -> list[Result | None]:
            languages = [recording.language for recording in recordings]
            windows = [recording.window(self._log_mel) for recording in recordings]
            choices = decoder.choices(windows, languages)
            found = outputs(choices, len(recordings), end)
            for recording, output, language in zip(recordings, found, languages, strict=True):
                recording.language = language
                recording.add(output, begin, self._log_mel.frames)
            return [None] * len(recordings)

        failures = each_if_not_all(decode, [*batch.values()], _rejected) if batch else []
        return dict(zip(batch, failures, strict=True))

    def _result(self, recording: Recording) -> Result:
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
        )

    def _decoder(
        self,
        options: GenerationOptions,
        asked: SpeechOptions,
        limit: int | None,
        *,
        timestamps: bool,
    ) -> WindowDecoder:
        manifest = self._manifest
        instructions = self._speech.instructions(asked, timestamps=timestamps)
        if limit is None:
            told = bool(self._speech.languages) + len(instructions)
            limit = options.max_new_tokens + len(manifest.rules.prompt) - told
        return WindowDecoder(
            self._backend,
            manifest.model,
            self._speech,
            manifest.rules.with_minimum(options.min_new_tokens),
            instructions,
            limit,
            timestamps=timestamps,
        )

    def _rows(self, options: GenerationOptions) -> int:
        """Windows of a batch."""
        positions = self._manifest.model.max_source_positions
        rows = options.max_batch_tokens // positions
        if options.max_batch_size is None:
            rows = self._backend.rows_that_fit(positions) or rows
        else:
            rows = min(rows, options.max_batch_size)
        return max(1, min(rows, self._backend.limits.rows or rows))

    def _is_long(self, recording: Recording) -> bool:
        return recording.frames > self._log_mel.frames


def _rejected(reason: str) -> Result:
    return Result("", (), 0.0, "rejected", reason, segments=())
