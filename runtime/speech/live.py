"""Transcribes speech while it arrives: words are committed once two passes agree on them.

An utterance, what is said between two pauses, is decoded again after each half second of it, and
begins with its committed words (local agreement: Liu et al. 2020, section 3.2; Macháček et al.
2023). Updates depend neither on the sizes of chunks nor on a clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from ..arguments import StopCheck
from ..audio import AudioError, LogMel
from ..audio.voice_activity import (
    MARGIN,
    RATE,
    SHORTEST,
    SILENCE,
    SPEECH,
    WINDOW,
    VoiceDetector,
)
from ..backends.interface import Backend, BackendError
from ..decoding.results import LiveUpdate, Segment
from ..decoding.running_batch import DecodedJob, Job
from ..decoding.scheduler import FailedJob, Scheduler
from ..format.model_spec import ModelSpec
from ..texts.tokenizer import TextCodec
from .plan import SpeechPlan
from .recording import Recording, Spectrogram
from .timestamps import TimedTokens
from .windows import Windows
from .word_times import WITHOUT_SPACES, SpokenWindow, WordTimer, spans_of

Signal = NDArray[np.float32]
Chunk = bytes | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
"""Samples at the model's rate: 16-bit little-endian bytes or integers, or numbers from -1 to 1."""

SCALE = np.float32(2**-15)
"""Samples of 16 bits are divided by their range."""
STEP = 16 * WINDOW
"""Samples between two passes, about half a second."""
PAUSE = 19 * WINDOW
"""Samples of silence that end an utterance, about 0.6 s."""
FULL = 0.8
"""Share of a window; an utterance that is longer is divided after its committed words."""
TOKENS_PER_SECOND, LEAST_TOKENS = 30, 12
"""Tokens of a pass: nobody says more in any language; a model that repeats itself would."""
REFUSED = (
    *("fallback", "cut_at_silence", "timestamps", "prefix", "condition_on_previous_text"),
    "strict_audio",
)
"""Options that are for recordings."""


def live_options(options: GenerationOptions) -> GenerationOptions:
    """Return the options of a live transcription, by default greedy."""
    wrong = [name for name in options.given(REFUSED) if getattr(options, name) is not False]
    if wrong:
        raise DragomanError(f"{', '.join(wrong)}: for recordings, not for live speech")
    if options.num_beams is None and not options.do_sample:
        options = options.replace(num_beams=1, do_sample=False)
    return options.replace(timestamps=False)


class Listener:
    """Transcribes one stream of speech.

    Args:
        vad: whether a voice activity detector finds pauses; otherwise, all is one utterance
    """

    def __init__(
        self,
        model: ModelSpec,
        log_mel: LogMel,
        backend: Backend,
        codec: TextCodec,
        windows: Windows,
        timer: WordTimer | None,
        plan: SpeechPlan,
        *,
        vad: bool,
        check: StopCheck,
        words: bool = False,
    ) -> None:
        self._model, self._log_mel, self._backend = model, log_mel, backend
        self._codec, self._windows, self._timer, self._plan = codec, windows, timer, plan
        self._detector = VoiceDetector() if vad else None
        self._shortest = SHORTEST if vad else 1
        self._check, self._reports_words = check, words
        self._rest = np.zeros(0, np.float32)  # less than a window of the detector
        self._before = np.zeros(0, np.float32)  # the margin, while nobody speaks
        self._heard = 0  # samples
        self._utterance: _Utterance | None = None
        self._texts = Recording(Spectrogram(np.zeros((log_mel.bins, 0), np.float32), 0, 0.0))
        windows.set_texts(self._texts, plan.options)
        self._texts.language = plan.prompt.language_token(windows.speech)
        self._full = round(FULL * log_mel.samples)

    def hear(self, samples: Signal) -> Iterator[LiveUpdate]:
        """Take further samples, and yield what has become certain."""
        signal = np.concatenate([self._rest, samples])
        whole = len(signal) // WINDOW * WINDOW
        self._rest = signal[whole:]
        for window in signal[:whole].reshape(-1, WINDOW):
            yield from self._hear_window(window)

    def end(self) -> Iterator[LiveUpdate]:
        """Take the end of the stream, and yield the rest."""
        if self._utterance is not None:
            self._utterance.add(self._rest, is_voiced=False)
            yield from self._finish(self._utterance)

    def _hear_window(self, window: Signal) -> Iterator[LiveUpdate]:
        detector = self._detector
        probability = 1.0 if detector is None else detector.probabilities(window[None]).item()
        self._heard += len(window)
        spoken = self._utterance
        if spoken is None:
            if probability < SPEECH:
                self._before = np.concatenate([self._before, window])[-MARGIN:]
                return
            begin = self._heard - len(window) - len(self._before)
            spoken = self._utterance = _Utterance(begin, self._before, self._codec)
        is_quiet = probability < SILENCE or (spoken.quiet > 0 and probability < SPEECH)
        spoken.add(window, is_voiced=not is_quiet)
        if spoken.quiet >= PAUSE:
            yield from self._finish(spoken)
        elif len(spoken) >= spoken.next_pass:
            spoken.next_pass += STEP
            if spoken.voiced >= self._shortest:
                yield from self._pass(spoken)

    def _pass(self, spoken: _Utterance) -> Iterator[LiveUpdate]:
        """Decode an utterance so far, and commit what two passes agree on."""
        tokens, outcome = self._decoded(spoken)
        count = _agreed(tokens, spoken.expected, self._codec, self._language)
        text = spoken.commit(tokens[:count])
        spoken.expected = tokens[count:]
        is_full = len(spoken) > self._full
        is_full = is_full or len(spoken.tokens) > self._model.max_target_positions // 3
        if is_full and (spoken.tokens or len(spoken) + STEP > self._log_mel.samples):
            end = self._end_of_committed(spoken, outcome)
            if end == len(spoken):
                text += spoken.commit(spoken.expected)
            yield LiveUpdate(text + spoken.rest(), self._divide(spoken, outcome, end))
        elif text:
            yield LiveUpdate(text)

    def _end_of_committed(self, spoken: _Utterance, outcome: DecodedJob[int]) -> int:
        """Return where the committed words of an utterance end; its own end if that is unknown."""
        end = len(spoken)
        if self._timer is None or outcome.encoded is None or not spoken.tokens:
            return end
        tokens = [*spoken.tokens, *spoken.expected]
        times = self._timer.times(outcome.encoded, self._prompt, tokens, self._frames(end))
        begins = round(float(times.starts[len(spoken.tokens)]) * RATE)
        return begins if end // 2 < begins < end else end

    def _divide(self, spoken: _Utterance, outcome: DecodedJob[int], end: int) -> Segment:
        segment = self._segment(spoken, outcome, end)
        most = self._model.max_target_positions // 4
        self._texts.context = (*self._texts.context, *spoken.tokens)[-most:]
        following = _Utterance(spoken.begin + end, spoken.audio()[end:], self._codec)
        following.voiced = self._shortest if len(following) else 0
        following.quiet = spoken.quiet
        following.next_pass = len(following) + STEP
        self._utterance = following
        return segment

    def _finish(self, spoken: _Utterance) -> Iterator[LiveUpdate]:
        """End an utterance; noise has no text."""
        self._utterance = None
        self._before = spoken.audio()[-MARGIN:]
        if spoken.voiced < self._shortest:
            return
        tokens, outcome = self._decoded(spoken)
        text = spoken.commit(tokens) + spoken.rest()
        self._texts.context = ()
        if spoken.tokens:
            silent = max(0, spoken.quiet - (PAUSE - MARGIN))  # the next one may begin there
            yield LiveUpdate(text, self._segment(spoken, outcome, len(spoken) - silent))

    def _segment(self, spoken: _Utterance, outcome: DecodedJob[int], end: int) -> Segment:
        offset, seconds = spoken.begin / RATE, end / RATE
        timed = TimedTokens(offset, offset + seconds, tuple(spoken.tokens))
        if self._timer is not None and outcome.encoded is not None and self._reports_words:
            window = SpokenWindow(self._prompt, self._frames(end), offset, offset, self._language)
            (timed,) = self._timer.timed([timed], outcome.encoded, window, self._codec.stream)
        text = self._windows.text(timed.tokens)
        start, stop = round(timed.start, 3), round(timed.end, 3)
        return Segment(start, stop, text, timed.tokens, timed.words)

    def _decoded(self, spoken: _Utterance) -> tuple[list[int], DecodedJob[int]]:
        audio = spoken.audio()[: self._log_mel.samples]
        features = self._log_mel.chunk(audio)
        recording = Recording(Spectrogram(features, self._log_mel.frames, len(audio) / RATE))
        recording.language, recording.prefix = self._texts.language, tuple(spoken.tokens)
        recording.context, recording.hotwords = self._texts.context, self._texts.hotwords
        most = LEAST_TOKENS + round(TOKENS_PER_SECOND * len(audio) / RATE)
        plan = self._plan.limited(min(most, self._model.max_target_positions // 2))
        detects = True
        while detects:
            detects = self._windows.detects_first(recording)
            outcome = self._run(self._windows.job(recording, plan))
            if outcome.selected:
                ((recording.language, _),) = outcome.selected
                self._texts.language = recording.language
        end = self._model.end_token_id
        return [token for token in outcome.sequences[0].tokens if token < end], outcome

    def _run(self, job: Job[int]) -> DecodedJob[int]:
        width, positions = job.strategy.width, self._model.max_source_positions
        scheduler: Scheduler[int] = Scheduler(
            self._backend, self._model, rows=width, tokens=width * positions
        )
        scheduler.add(job)
        (outcome,) = scheduler.run(self._check)
        if isinstance(outcome, FailedJob):
            raise outcome.error
        if not outcome.sequences:
            raise BackendError("found no output that all rules allow")
        return outcome

    @property
    def _language(self) -> str | None:
        return self._windows.speech.language_of(self._texts.language)

    @property
    def _prompt(self) -> Sequence[int]:
        return self._windows.prompt(self._plan, self._texts.language)

    def _frames(self, samples: int) -> int:
        return min(self._log_mel.frames, samples // self._log_mel.hop)


class _Utterance:
    """What is said between two pauses.

    Attributes:
        begin: samples before it
        voiced: samples of speech
        quiet: samples since the last speech
    """

    def __init__(self, begin: int, before: Signal, codec: TextCodec) -> None:
        self.begin, self._blocks, self._length = begin, [before], len(before)
        self.tokens: list[int] = []
        """The committed tokens."""
        self.expected: list[int] = []
        """Tokens of the last pass that are not committed."""
        self.voiced = self.quiet = 0
        self.next_pass = STEP
        """Length of the next pass."""
        self._stream = codec.stream()

    def __len__(self) -> int:
        return self._length

    def add(self, window: Signal, *, is_voiced: bool) -> None:
        self._blocks.append(window)
        self._length += len(window)
        self.voiced += len(window) * is_voiced
        self.quiet = 0 if is_voiced else self.quiet + len(window)

    def audio(self) -> Signal:
        self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]

    def commit(self, tokens: Sequence[int]) -> str:
        self.tokens += tokens
        return "".join(map(self._stream.step, tokens))

    def rest(self) -> str:
        return self._stream.rest()


def _agreed(
    tokens: Sequence[int], before: Sequence[int], codec: TextCodec, language: str | None
) -> int:
    """Return the number of tokens that two passes agree on, without the last word and full stop."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(tokens, before, strict=False))
    count = sum(1 for _ in same)
    spans = spans_of(tokens, codec.stream(), spaces=language not in WITHOUT_SPACES)
    ends = list(accumulate(span.tokens for span in spans))
    words = [n for n, span in enumerate(spans) if any(map(str.isalnum, span.text))]
    before_last = ends[words[-1] - 1] if words and words[-1] else 0
    return max((end for end in ends if end <= min(count, before_last)), default=0)


def samples_of(chunks: Iterable[Chunk]) -> Iterator[Signal]:
    """Yield the samples of chunks of any length, which are checked."""
    odd = b""
    for chunk in chunks:
        if isinstance(chunk, bytes | bytearray | memoryview):
            data = odd + bytes(chunk)
            even = len(data) // 2 * 2
            odd = data[even:]
            yield np.frombuffer(data[:even], "<i2") * SCALE
            continue
        if not isinstance(chunk, np.ndarray) or chunk.ndim != 1:
            found = f"an array {list(chunk.shape)}" if hasattr(chunk, "shape") else shown(chunk)
            raise AudioError(f"chunk: expected bytes or samples [samples], found {found}")
        if chunk.dtype == np.int16:
            yield chunk * SCALE
        elif not np.issubdtype(chunk.dtype, np.floating):
            raise AudioError(f"chunk: expected int16 or floating numbers, found {chunk.dtype}")
        elif not np.isfinite(chunk).all():
            raise AudioError("chunk: expected finite numbers, found NaN or infinity")
        else:
            yield chunk.astype(np.float32)
    if odd:
        raise AudioError("expected samples of two bytes, found one byte more")


def listening(listener: Listener, chunks: Iterable[Chunk]) -> Generator[LiveUpdate]:
    """Yield the updates of a listener for all chunks."""
    problem = None
    try:
        for samples in samples_of(chunks):
            yield from listener.hear(samples)
    except AudioError as error:
        problem = error
    yield from listener.end()
    if problem is not None:
        raise problem
