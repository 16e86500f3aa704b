"""The front end of speech models: transcribes audio files, samples or features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.speech import AudioFeatures, SpeechTokens

from ..arguments import StopCheck, StoppedError, never_stopped
from ..audio import AudioError, LogMel
from ..backends.interface import Backend, BackendError, DeviceLostError
from ..decoding.greedy_and_sampling import Greedy, Sample
from ..decoding.results import (
    NO_OUTPUT,
    FinishReason,
    RejectedError,
    Result,
    Segment,
    Word,
    collected,
)
from ..decoding.running_batch import DecodedJob, Job, SelectedToken, only_strategy, stream_tokens
from ..decoding.scheduler import FailedJob, Scheduler
from ..format.manifest import Manifest
from ..front_end import planned
from ..texts.tokenizer import TextCodec, TokenizerError
from .fallback import FORGETS_ABOVE, TEMPERATURES, is_doubtful, is_silent, quality_of
from .plan import SpeechPlan
from .prompts import PromptRequest
from .recording import Recording, Spectrogram, read_spectrogram, warn_of_defects
from .timestamps import TimedTokens
from .word_times import SpokenWindow, WordTimer


class Windows:
    """Creates jobs for windows, and transcripts from their outputs.

    Args:
        timer: times words
        codec: tokenizers; None if the bundle has none
        rows: maximum number of rows of a batch; None: unlimited
    """

    def __init__(
        self,
        manifest: Manifest,
        speech: SpeechTokens,
        log_mel: LogMel,
        timer: WordTimer,
        codec: TextCodec | None,
        rows: int | None,
    ) -> None:
        self._manifest, self._speech, self._log_mel = manifest, speech, log_mel
        self._timer, self._codec, self._rows = timer, codec, rows

    def job(self, recording: Recording, plan: SpeechPlan) -> Job[int]:
        """Create the job for a recording's next window."""
        windows = plan.windows(self._manifest, self._speech, timed=recording.timed)
        window = recording.window(self._log_mel)
        if self._detects_first(recording):
            return Job(0, dataclasses.replace(windows, limit=1).request(window, None), Greedy())
        request = windows.request(
            window,
            recording.language,
            recording.context,
            keeps_encoded=plan.options.word_timestamps,
        )
        strategy = plan.strategy_of(recording.windows, recording.attempt, self._rows)
        return Job(0, request, strategy)

    def _detects_first(self, recording: Recording) -> bool:
        """Return whether the language is detected without the text before the window."""
        unknown = bool(self._speech.languages) and recording.language is None
        return unknown and bool(recording.context)

    def context(self, text: str | None) -> tuple[int, ...]:
        """Return the tokens that the model reads before the first window.

        Raises:
            TokenizerError: the tokenizer fails on the text.
        """
        if not text or not text.strip() or self._codec is None:
            return ()
        # As many tokens as are read have at most this length, but for a few rare ones.
        end = text.strip()[-16 * self._manifest.model.max_target_positions :]
        return tuple(self._codec.encode_target(f" {end}", split_special_tokens=True).tokens)

    def _read_next(self, segment: TimedTokens) -> tuple[int, ...]:
        """Return the tokens of a segment that the model reads before the next window."""
        text = self.text(segment.tokens)
        if segment.start == segment.end or (text is not None and not text.strip()):
            return ()
        begin = self._speech.timestamp_begin or 0
        repeated = all(token >= begin for token in segment.tokens[-2:])
        return segment.tokens[:-1] if repeated else segment.tokens

    def add(self, recording: Recording, plan: SpeechPlan, outcome: DecodedJob[Any]) -> None:
        """Add the output of a window to its recording, or only count the attempt if it is doubtful.

        Raises:
            BackendError, TokenizerError: times of words or texts cannot be computed.
        """
        detects = self._detects_first(recording)
        if outcome.selected:
            ((recording.language, recording.language_probability),) = outcome.selected
        if detects:
            return
        output, options, strategy = outcome.sequences[0], plan.options, outcome.job.strategy
        quality, temperature = None, strategy.temperature if isinstance(strategy, Sample) else 0.0
        if options.fallback:
            text = self.text(output.tokens) or ""
            quality = quality_of(output, text, outcome.observed, recording.attempt, strategy)
            temperature = quality.temperature
            last = recording.attempt + 1 == len(TEMPERATURES)
            if is_doubtful(quality, options) and not last:
                recording.attempt += 1
                return
            if is_silent(quality, options):
                recording.leave_out(self._log_mel.frames)
                return
        begin, encoded = self._speech.timestamp_begin, outcome.encoded
        before = len(recording.segments)

        def with_words(segments: list[TimedTokens]) -> list[TimedTokens]:
            segments = [dataclasses.replace(segment, quality=quality) for segment in segments]
            if not options.word_timestamps or self._codec is None:
                return segments
            if encoded is None:  # nothing was decoded
                return [dataclasses.replace(segment, words=()) for segment in segments]
            window = SpokenWindow(
                self._prompt(plan, recording.language),
                recording.spoken_frames(self._log_mel),
                recording.offset,
                recording.spoken,
                self._speech.language_of(recording.language),
            )
            found = self._timer.timed(segments, encoded, window, self._codec.stream())
            ends = [word.end for segment in found for word in segment.words or ()]
            recording.spoken = ends[-1] if ends else found[-1].end
            return found

        outcome.encoded = None  # as large as the window's caches
        recording.add(output, begin, self._log_mel.frames, with_words)
        if not options.condition_on_previous_text or temperature > FORGETS_ABOVE:
            recording.context = ()
        else:
            new = recording.segments[before:]
            recording.context += tuple(t for segment in new for t in self._read_next(segment))

    def _prompt(self, plan: SpeechPlan, language: int | None) -> tuple[int, ...]:
        """Return the prompt that precedes a text without timestamps."""
        named = [] if language is None else [language]
        instructions = plan.prompt.of_texts(self._speech).instructions(self._speech)
        return (self._manifest.model.start_token_id, *named, *instructions)

    def transcript(self, recording: Recording, *, skip_special_tokens: bool) -> Result:
        """Create the result of a recording after its last window.

        Args:
            skip_special_tokens: whether texts omit special tokens

        Raises:
            TokenizerError: the tokenizer fails on the tokens.
        """
        tokens = tuple(token for segment in recording.segments for token in segment.tokens)
        text = self.text(tokens, skip_special_tokens=skip_special_tokens)
        audio = recording.audio
        timed = [s for s in recording.segments if s.words is not None]
        words = _words(timed, audio) if timed else None
        qualities = {segment.quality for segment in recording.segments}
        quality = qualities.pop() if len(qualities) == 1 else None  # of several windows, none
        segments: tuple[Segment, ...] = (
            Segment(0.0, audio.duration, text, tokens, words, quality),
        )
        if recording.timed or not recording.segments:
            segments = tuple(
                Segment(
                    *audio.original(s.start, s.end),
                    self.text(s.tokens, skip_special_tokens=skip_special_tokens),
                    s.tokens,
                    None if s.words is None else _words([s], audio),
                    s.quality,
                )
                for s in recording.segments
            )
        finish_reason: FinishReason = "end" if recording.ended else "length"
        return Result(
            text,
            tokens,
            recording.log_probability,
            finish_reason if recording.segments else "empty",
            segments=segments,
            language=self._speech.language_of(recording.language),
            end_token=recording.end_token,
            score=recording.score,
            warnings=audio.defects,
            voice=None if audio.voice is None else audio.voice.spans,
            language_probability=recording.language_probability,
        )

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Decode tokens without timestamps; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self._speech.timestamp_begin
        return self._codec.decode(
            [t for t in tokens if begin is None or t < begin],
            skip_special_tokens=skip_special_tokens,
        )


class PendingSpeech:
    """A recording whose windows are decoded one after another."""

    prefix: Sequence[int] = ()

    def __init__(self, recording: Recording, plan: SpeechPlan, windows: Windows) -> None:
        self._recording, self._plan, self._windows = recording, plan, windows
        self.jobs = [windows.job(recording, plan)]

    @property
    def seconds(self) -> float:
        """The length of the audio."""
        return self._recording.audio.seconds

    def add(self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]) -> Result | Job[int]:
        """Add the output of a window; return the job of the next one, or the result."""
        if isinstance(outcome, FailedJob):
            return rejected(str(outcome.error))
        if not outcome.sequences:
            return rejected(NO_OUTPUT)
        try:
            self._windows.add(self._recording, self._plan, outcome)
            if not self._recording.done:
                return self._windows.job(self._recording, self._plan)
            return self._windows.transcript(
                self._recording, skip_special_tokens=self._plan.options.skip_special_tokens
            )
        except DeviceLostError:
            raise
        except (BackendError, TokenizerError) as failure:
            return rejected(str(failure))


def _words(segments: Sequence[TimedTokens], audio: Spectrogram) -> tuple[Word, ...]:
    """Return words with their times in the recording."""
    return tuple(
        Word(*audio.original(word.start, word.end), word.text, word.probability)
        for segment in segments
        for word in segment.words or ()
    )


def rejected(reason: str) -> Result:
    """Return the result of audio that cannot be decoded."""
    return Result("", (), 0.0, "rejected", reason, segments=())


def silent(audio: Spectrogram) -> Result:
    """Return the result of audio without speech, which the model does not decode."""
    voice = None if audio.voice is None else audio.voice.spans
    return Result("", (), 0.0, "empty", segments=(), warnings=audio.defects, voice=voice)


MAX_OPEN_SECONDS = 2 * 3600
"""Maximum seconds of audio whose features are in memory: 230 MB at 80 mel bins."""


class Transcriber:
    """Decodes recordings in batches of windows; see `front_end.FrontEnd`.

    Args:
        codec: tokenizers; None if the bundle has none
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
        self._timer = WordTimer(manifest, backend)
        rows = backend.limits.rows
        self._windows = Windows(manifest, speech, self._log_mel, self._timer, codec, rows)

    def generate(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck = never_stopped,
    ) -> list[Result]:
        """Decode recordings; see `front_end.FrontEnd.generate`."""
        return collected(self._results(sources, options, check), len(sources))

    def begin(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> PendingSpeech | Result:
        """Read audio and create the job of its first window; see `front_end.FrontEnd.begin`."""
        check()
        return self._begin(source, self._plan(options), check)

    def stream(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> Iterator[SelectedToken]:
        """Yield tokens for audio of at most one window as they are selected."""
        plan = self._plan(options)
        for name in ("word_timestamps", "fallback"):
            if getattr(plan.options, name):
                raise DragomanError(f"{name}: expected false to stream")
        strategy = only_strategy([plan.strategy])
        try:
            audio = self._read(source, options, check)
        except AudioError as error:
            raise RejectedError(str(error)) from error
        warn_of_defects(audio)
        if not audio.frames:
            return iter(())
        if self._is_long(audio):
            raise RejectedError(
                f"expected audio of at most {self._log_mel.chunk_seconds:g} s to stream, found "
                f"{audio.seconds:.2f} s"
            )
        windows = plan.windows(self._manifest, self._speech, timed=plan.prompt.timestamps)
        language = plan.prompt.language_token(self._speech)
        context = self._windows.context(plan.options.initial_prompt)
        if context and self._speech.languages and language is None:
            raise RejectedError("initial_prompt: expected a language, too, to stream")
        request = windows.request(self._log_mel.segment(audio.features, 0), language, context)
        job = Job(0, request, strategy)
        return stream_tokens(self._backend, self._manifest.model, job, check)

    def rejected(self, reason: str) -> Result:
        """Return the result of audio that cannot be decoded."""
        return rejected(reason)

    def tokenize(
        self,
        source: Any,
        source_language: str | None,
        *,
        split_special_tokens: bool = False,
        truncate: bool = False,
    ) -> list[int]:
        """Raise an error: audio has no tokens."""
        raise RejectedError("expected a text model, found a speech model")

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Decode tokens without timestamps; None without tokenizers."""
        return self._windows.text(tokens, skip_special_tokens=skip_special_tokens)

    def _results(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck,
    ) -> Iterator[tuple[int, Result]]:
        """Yield results in order of completion, with the indices of their sources."""
        plans = list(planned(options, len(sources), self._plan))
        usable = {id(plan): plan for plan in plans if isinstance(plan, SpeechPlan)}
        rows = min(map(self._rows, usable.values()), default=1)
        tokens = rows * self._manifest.model.max_source_positions
        scheduler: Scheduler[int] = Scheduler(
            self._backend, self._manifest.model, rows=rows, tokens=tokens
        )
        waiting = iter(enumerate(zip(sources, plans, strict=True)))
        opened: dict[int, PendingSpeech] = {}
        yield from self._open_more(waiting, opened, rows, scheduler, check)
        for outcome in scheduler.run(check):
            index = outcome.job.key
            following = opened[index].add(0, outcome)
            if isinstance(following, Job):
                scheduler.add(Job(index, following.request, following.strategy))
                continue
            del opened[index]
            yield index, following
            yield from self._open_more(waiting, opened, rows, scheduler, check)

    def _plan(self, options: GenerationOptions) -> SpeechPlan:
        plan = SpeechPlan.of(options, self._manifest, self._speech)
        if plan.options.word_timestamps:
            self._timer.check()
        of_texts = ("word_timestamps", "fallback", "initial_prompt")
        for name in of_texts if self._codec is None else ():
            if getattr(plan.options, name):
                raise DragomanError(f"{name}: expected a bundle with tokenizers")
        return plan

    def _open_more(
        self,
        waiting: Iterator[tuple[int, tuple[Any, SpeechPlan | DragomanError]]],
        opened: dict[int, PendingSpeech],
        rows: int,
        scheduler: Scheduler[int],
        check: StopCheck,
    ) -> Iterator[tuple[int, Result]]:
        """Open recordings while there is room and queue their first windows.

        Yields:
            the results of recordings that cannot be opened
        """
        while len(opened) < rows and sum(p.seconds for p in opened.values()) < MAX_OPEN_SECONDS:
            following = next(waiting, None)
            if following is None:
                return
            index, (source, plan) = following
            check()
            begun = self._begin(source, plan, check)
            if isinstance(begun, PendingSpeech):
                opened[index] = begun
                for job in begun.jobs:
                    scheduler.add(Job(index, job.request, job.strategy))
            else:
                yield index, begun

    def _begin(
        self, source: Any, plan: SpeechPlan | DragomanError, check: StopCheck
    ) -> PendingSpeech | Result:
        try:
            if isinstance(plan, DragomanError):
                raise plan
            audio = self._read(source, plan.options, check)
            if not audio.frames:
                return silent(audio)
            if self._is_long(audio):
                PromptRequest(timestamps=True).check(self._speech)
            context = self._windows.context(plan.options.initial_prompt)
        except StoppedError:
            raise
        except DragomanError as error:
            return rejected(str(error))
        recording = Recording(audio)
        recording.context = context
        recording.language = plan.prompt.language_token(self._speech)
        recording.timed = plan.prompt.timestamps or self._is_long(audio)
        return PendingSpeech(recording, plan, self._windows)

    def _read(self, source: Any, options: GenerationOptions, check: StopCheck) -> Spectrogram:
        return read_spectrogram(
            source,
            self._log_mel,
            strict=options.strict_audio,
            vad=options.vad,
            on_block=lambda _: check(),
        )

    def _rows(self, plan: SpeechPlan) -> int:
        """Return the maximum number of rows in a batch."""
        model = self._manifest.model
        positions = model.max_source_positions
        fitting = self._backend.rows_that_fit(positions, model.max_target_positions)
        return plan.rows(positions, fitting, self._backend.limits.rows)

    def _is_long(self, audio: Spectrogram) -> bool:
        return audio.frames > self._log_mel.frames
