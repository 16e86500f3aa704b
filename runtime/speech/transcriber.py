"""The front end of speech models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.speech import AudioFeatures, SpeechTokens

from ..arguments import StopCheck, StoppedError, never_stopped, planned
from ..audio import AudioError, LogMel
from ..audio.voice_activity import RATE, ending_pause
from ..backends.interface import Backend, BackendError, DeviceLostError
from ..decoding.results import (
    NO_OUTPUT,
    RejectedError,
    Result,
    Segment,
    SpokenLanguage,
    TranscriptUpdate,
    collected,
)
from ..decoding.running_batch import DecodedJob, Job, SelectedToken, only_strategy, stream_tokens
from ..decoding.scheduler import FailedJob, Scheduler
from ..decoding.strategies import DEFAULT_WINDOWS
from ..format.manifest import Manifest
from ..texts.tokenizer import TextCodec, TokenizerError
from .journal import Journal, JournalError, RecordingJournal
from .live import Listener, live_options
from .plan import SpeechPlan
from .prompts import DETECTED, PromptRequest
from .recording import (
    Recording,
    Spectrogram,
    is_features,
    parts_of,
    read_spectrogram,
    warn_of_defects,
)
from .windows import Windows
from .word_times import WordTimer


class PendingSpeech:
    """A recording whose windows are decoded in turn, or some parts at once."""

    prefix: Sequence[int] = ()

    def __init__(
        self,
        parts: Sequence[Recording],
        plan: SpeechPlan,
        windows: Windows,
        journal: RecordingJournal | None = None,
    ) -> None:
        self._parts, self._plan, self._windows, self._journal = parts, plan, windows, journal
        self.on_segments: Callable[[Sequence[Segment]], None] | None = None
        """Receives new segments, on the thread that decodes."""
        self._waiting = deque(n for n, part in enumerate(parts) if not part.done)
        self._running, self._lock = 0, Lock()
        self._segments: list[Segment] = []
        self._reported = 0
        self._collecting, self._collected = 0, 0  # a part, and the number of its segments
        if self.timed:
            self._collect_segments()
        self.jobs = self._more_jobs()

    @property
    def timed(self) -> bool:
        """Whether segments are known after each window."""
        return self._parts[0].timed or self._plan.options.cut_at_silence

    @property
    def seconds(self) -> float:
        """The length of the audio."""
        return self._parts[0].audio.seconds

    @property
    def done(self) -> float:
        """The share of the audio that is decoded, from 0 to 1."""
        decoded = sum(part.decoded_frames for part in self._parts)
        return min(1.0, decoded / max(1, self._parts[0].audio.frames))

    def _more_jobs(self) -> list[Job[int]]:
        jobs = []
        while self._waiting and self._running < DEFAULT_WINDOWS:
            number = self._waiting.popleft()
            part = self._parts[number]
            if part.language is None:
                part.language = self._parts[0].language
            jobs.append(self._windows.job(part, self._plan, number))
            self._running += 1
            if self._windows.is_unknown(part):
                break  # the other parts have the language that this one finds
        return jobs

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        """Add the output of a window; return the following jobs, or the result."""
        if isinstance(outcome, FailedJob):
            return rejected(str(outcome.error))
        if not outcome.sequences:
            return rejected(NO_OUTPUT)
        with self._lock:
            following = self._add(number, outcome)
            if self.on_segments is not None and (new := self.new_segments()):
                self.on_segments(new)
            return following

    def _add(self, number: int, outcome: DecodedJob[Any]) -> Result | Sequence[Job[int]]:
        part = self._parts[number]
        before = part.decoded_frames
        try:
            self._windows.add(part, self._plan, outcome)
            if self.timed:
                self._collect_segments()
            if self._journal is not None and part.decoded_frames > before:
                self._journal.add(number, part)
            if not part.done:
                following = [self._windows.job(part, self._plan, number)]
                return [*following, *self._more_jobs()]
            self._running -= 1
            return self._more_jobs() or ([] if self._running else self.result())
        except DeviceLostError:
            raise
        except (BackendError, TokenizerError) as failure:
            return rejected(str(failure))

    def _collect_segments(self) -> None:
        skips = self._plan.options.skip_special_tokens
        while self._collecting < len(self._parts):
            part = self._parts[self._collecting]
            new = self._windows.segments(part, self._collected, skip_special_tokens=skips)
            self._segments += new
            self._collected += len(new)
            if not part.done:
                return
            self._collecting, self._collected = self._collecting + 1, 0

    def new_segments(self) -> tuple[Segment, ...]:
        """Return the segments that have come since the last call."""
        new = tuple(self._segments[self._reported :])
        self._reported = len(self._segments)
        return new

    def result(self) -> Result:
        """Return the result after the last window."""
        skips = self._plan.options.skip_special_tokens
        return self._windows.transcript(self._parts, self._segments, skip_special_tokens=skips)


def rejected(reason: str) -> Result:
    """Return the result of audio that cannot be decoded."""
    return Result("", (), 0.0, "rejected", reason, segments=())


def silent(audio: Spectrogram) -> Result:
    """Return the result of audio without speech."""
    voice = None if audio.voice is None else audio.voice.spans
    return Result("", (), 0.0, "empty", segments=(), warnings=audio.defects, voice=voice)


NOT_STREAMED = ("word_timestamps", "fallback", "cut_at_silence", "prefix")
"""Options of speech whose outputs are not known token by token."""


def check_streamed(options: GenerationOptions) -> None:
    """Check that the tokens of speech can be streamed."""
    for name in NOT_STREAMED:
        if getattr(options, name):
            raise DragomanError(f"{name}: expected false to stream")


MAX_OPEN_SECONDS = 2 * 3600
"""Maximum seconds of audio whose features are in memory: 230 MB at 80 mel bins."""


class Transcriber:
    """Decodes recordings in batches of windows; see `texts.front_end.TextFrontEnd`."""

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
        """Decode recordings; see `TextFrontEnd.generate`."""
        updates = self.transcribe(sources, options, check)
        results = ((u.index, u.result) for u in updates if u.result is not None)
        return collected(results, len(sources))

    def detect_language(
        self, sources: Sequence[Any], *, vad: bool, check: StopCheck = never_stopped
    ) -> list[SpokenLanguage]:
        """Detect the languages of recordings; see `Model.detect_language`."""
        if not self._speech.languages:
            raise DragomanError("expected a model of several languages, found one of English")
        options = GenerationOptions(
            language=DETECTED, timestamps=False, max_new_tokens=1, num_beams=1, do_sample=False
        )

        def first_window(source: Any) -> Any:
            try:
                return read_spectrogram(
                    source,
                    self._log_mel,
                    pause=ending_pause(vad=vad and not is_features(source), cut=False),
                    whole=False,
                    on_block=lambda _: check(),
                )
            except AudioError as error:
                return error

        windows = [first_window(source) for source in sources]
        usable = [window for window in windows if not isinstance(window, AudioError)]
        results = iter(self.generate(usable, options, check))
        return [
            SpokenLanguage(None, None, str(window))
            if isinstance(window, AudioError)
            else SpokenLanguage(
                (found := next(results)).language, found.language_probability, found.error
            )
            for window in windows
        ]

    def listener(self, options: GenerationOptions, check: StopCheck) -> Listener:
        """Return a listener for one stream of speech; see `Model.listen`."""
        if self._codec is None:
            raise DragomanError("expected a bundle with tokenizers")
        rate = self._log_mel.sampling_rate
        if rate != RATE:
            raise DragomanError(f"expected a model of audio at {RATE} Hz, found {rate}")
        timer: WordTimer | None = self._timer
        if not options.word_timestamps:
            try:
                self._timer.check()
            except BackendError:
                timer = None
        # Encoded windows are kept to find where a long utterance is divided.
        plan = self._plan(live_options(options).replace(word_timestamps=timer is not None))
        return Listener(
            self._manifest.model,
            self._log_mel,
            self._backend,
            self._codec,
            self._windows,
            timer,
            plan,
            vad=bool(options.vad),
            check=check,
            words=options.word_timestamps,
        )

    def begin(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> PendingSpeech | Result:
        """Read audio and create its first job; see `TextFrontEnd.begin`."""
        check()
        return self._begin(source, self._plan(options), check)

    def stream(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> Iterator[SelectedToken]:
        """Yield tokens for audio of at most one window as they are selected."""
        plan = self._plan(options)
        check_streamed(plan.options)
        strategy = only_strategy([plan.strategy])
        try:
            audio = self._read(source, options, check)
        except AudioError as error:
            raise RejectedError(str(error)) from error
        warn_of_defects(audio)
        if not audio.frames:
            return iter(())
        if audio.frames > self._log_mel.frames:
            raise RejectedError(
                f"expected audio of at most {self._log_mel.chunk_seconds:g} s to stream, found "
                f"{audio.seconds:.2f} s"
            )
        windows = plan.windows(self._manifest, self._speech, timed=plan.prompt.timestamps)
        language = plan.prompt.language_token(self._speech)
        texts = Recording(audio)
        self._windows.set_texts(texts, plan.options)
        if (texts.context or texts.hotwords) and self._speech.languages and language is None:
            raise RejectedError("initial_prompt, hotwords: expected a language, too, to stream")
        features = self._log_mel.segment(audio.features, 0)
        request = windows.request(features, language, texts.context, hotwords=texts.hotwords)
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

    def transcribe(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck = never_stopped,
        journal: Journal | None = None,
    ) -> Iterator[TranscriptUpdate]:
        """Decode recordings, and yield updates after each window."""
        plans = list(planned(options, len(sources), self._plan))
        usable = {id(plan): plan for plan in plans if isinstance(plan, SpeechPlan)}
        rows = min(map(self._rows, usable.values()), default=1)
        tokens = rows * self._manifest.model.max_source_positions
        scheduler: Scheduler[tuple[int, int]] = Scheduler(
            self._backend, self._manifest.model, rows=rows, tokens=tokens
        )
        waiting = iter(enumerate(zip(sources, plans, strict=True)))
        opened: dict[int, PendingSpeech] = {}

        def open_more() -> Iterator[TranscriptUpdate]:
            while len(opened) < rows and sum(p.seconds for p in opened.values()) < MAX_OPEN_SECONDS:
                following = next(waiting, None)
                if following is None:
                    return
                index, (source, plan) = following
                check()
                begun = self._begin(source, plan, check, journal)
                if isinstance(begun, Result):
                    yield TranscriptUpdate(index, begun.segments or (), 1.0, begun)
                    continue
                opened[index] = begun
                add(index, begun.jobs)
                if begun.done:
                    yield TranscriptUpdate(index, begun.new_segments(), begun.done)

        def add(index: int, jobs: Sequence[Job[int]]) -> None:
            for job in jobs:
                scheduler.add(Job((index, job.key), job.request, job.strategy))

        yield from open_more()
        for outcome in scheduler.run(check):
            index, number = outcome.job.key
            pending = opened.get(index)
            if pending is None:
                continue  # another part of the recording has failed
            following = pending.add(number, outcome)
            if not isinstance(following, Result):
                add(index, following)
                yield TranscriptUpdate(index, pending.new_segments(), pending.done)
                continue
            # An untimed recording has its segment in the result only.
            new = pending.new_segments() if pending.timed else following.segments or ()
            del opened[index]
            yield TranscriptUpdate(index, new, 1.0, following)
            yield from open_more()

    def _plan(self, options: GenerationOptions) -> SpeechPlan:
        plan = SpeechPlan.of(options, self._manifest, self._speech)
        if plan.options.word_timestamps:
            self._timer.check()
        of_texts = ("word_timestamps", "fallback", "initial_prompt", "hotwords")
        for name in of_texts if self._codec is None else ():
            if getattr(plan.options, name):
                raise DragomanError(f"{name}: expected a bundle with tokenizers")
        return plan

    def _begin(
        self,
        source: Any,
        plan: SpeechPlan | DragomanError,
        check: StopCheck,
        journal: Journal | None = None,
    ) -> PendingSpeech | Result:
        try:
            if isinstance(plan, DragomanError):
                raise plan
            audio = self._read(source, plan.options, check)
            if not audio.frames:
                return silent(audio)
            window = self._log_mel.frames
            cut = plan.options.cut_at_silence
            parts = parts_of(audio, window) if cut else [Recording(audio)]
            if any(part.frames > window for part in parts):
                PromptRequest(timestamps=True).check(self._speech)
            self._windows.set_texts(parts[0], plan.options)
            for part in parts:
                part.language = plan.prompt.language_token(self._speech)
                part.timed = plan.prompt.timestamps or part.frames > window
                part.context, part.hotwords = parts[0].context, parts[0].hotwords
            kept = None if journal is None else journal.of(source, parts)
            pending = PendingSpeech(parts, plan, self._windows, kept)
            return pending if pending.jobs else pending.result()
        except (StoppedError, JournalError):
            raise
        except DragomanError as error:
            return rejected(str(error))

    def _read(self, source: Any, options: GenerationOptions, check: StopCheck) -> Spectrogram:
        return read_spectrogram(
            source,
            self._log_mel,
            strict=options.strict_audio,
            pause=ending_pause(vad=bool(options.vad), cut=options.cut_at_silence),
            on_block=lambda _: check(),
        )

    def _rows(self, plan: SpeechPlan) -> int:
        model = self._manifest.model
        positions = model.max_source_positions
        fitting = self._backend.rows_that_fit(positions, model.max_target_positions)
        return plan.rows(positions, fitting, self._backend.limits.rows)
