"""Creates jobs for windows of recordings, and transcripts from their outputs.

Outputs are judged as by openai-whisper (Radford et al. 2022, section 4.5): a window whose text
repeats itself or is improbable is decoded again, and one without speech is left out.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions, Phrase
from dragoman.settings.speech import SpeechTokens

from ..audio import LogMel
from ..decoding.beam_search import Beam
from ..decoding.greedy_and_sampling import Greedy, Sample
from ..decoding.results import FinishReason, Quality, Result, Segment, Word
from ..decoding.running_batch import DecodedJob, Job
from ..decoding.search import Strategy, TokenSequence
from ..format.manifest import Manifest
from ..texts.tokenizer import TextCodec, TokenizerError
from .plan import TEMPERATURES, SpeechPlan
from .recording import Recording, Spectrogram
from .timestamps import TimedTokens
from .word_times import SpokenWindow, WordTimer

FORGETS_ABOVE = 0.5
"""Temperature above which a text is not read by the model for the next window."""


class Windows:
    """Creates jobs for windows, and transcripts from their outputs."""

    def __init__(
        self,
        manifest: Manifest,
        speech: SpeechTokens,
        log_mel: LogMel,
        timer: WordTimer,
        codec: TextCodec | None,
        rows: int | None,
    ) -> None:
        self._manifest, self.speech, self._log_mel = manifest, speech, log_mel
        self._timer, self._codec, self._rows = timer, codec, rows

    def job(self, recording: Recording, plan: SpeechPlan, number: int = 0) -> Job[int]:
        """Create the job for a recording's next window.

        Raises:
            DragomanError: the prefix does not leave room for a text.
        """
        windows = plan.windows(self._manifest, self.speech, timed=recording.timed)
        window = recording.encoded or recording.window(self._log_mel)
        if self.detects_first(recording):
            request = dataclasses.replace(windows, limit=1).request(window, None)
            return Job(number, request, Greedy())
        request = windows.request(
            window,
            recording.language,
            recording.context,
            hotwords=recording.hotwords,
            beginning=self._beginning(recording),
            keeps_encoded=partial(self._is_kept, recording, plan),
        )
        strategy = plan.strategy_of(recording.windows, recording.attempt, self._rows)
        return Job(number, request, strategy)

    def is_unknown(self, recording: Recording) -> bool:
        """Return whether the language of a recording is to be detected."""
        return bool(self.speech.languages) and recording.language is None

    def detects_first(self, recording: Recording) -> bool:
        """Return whether the language is detected without the text before."""
        return self.is_unknown(recording) and bool(
            recording.context or recording.hotwords or recording.prefix
        )

    def _beginning(self, recording: Recording) -> tuple[int, ...]:
        if not recording.at_begin or not recording.prefix:
            return ()
        begin = self.speech.timestamp_begin
        timestamp = (begin,) if recording.timed and begin is not None else ()
        return (*timestamp, *recording.prefix)

    def set_texts(self, recording: Recording, options: GenerationOptions) -> None:
        """Set the tokens of a recording's initial prompt, hotwords and prefix."""
        recording.context = self._read_before(options.initial_prompt)
        recording.hotwords = self._read_before(options.hotwords)
        recording.prefix = self._prefix(options.prefix)

    def _read_before(self, text: str | None) -> tuple[int, ...]:
        if not text or not text.strip() or self._codec is None:
            return ()
        # As many tokens as are read have at most this length, but for a few rare ones.
        end = text.strip()[-16 * self._manifest.model.max_target_positions :]
        return tuple(self._codec.encode_target(f" {end}", split_special_tokens=True).tokens)

    def _prefix(self, prefix: Phrase | None) -> tuple[int, ...]:
        end = self._manifest.model.end_token_id
        if isinstance(prefix, str):
            if not prefix.strip():
                return ()
            if self._codec is None:
                raise DragomanError("prefix: expected token ids: the bundle has no tokenizers")
            text = f" {prefix.strip()}"
            return tuple(self._codec.encode_target(text, split_special_tokens=True).tokens)
        wrong = [token for token in prefix or () if not 0 <= token < end]
        if wrong:
            raise DragomanError(f"prefix: expected tokens of text, under {end}, found {wrong[0]}")
        return tuple(prefix or ())

    def add(self, recording: Recording, plan: SpeechPlan, outcome: DecodedJob[Any]) -> None:
        """Add the output of a window to its recording; only count the attempt if it is doubtful."""
        detects = self.detects_first(recording)
        if outcome.selected:
            ((recording.language, recording.language_probability),) = outcome.selected
        if detects:
            return
        output, options, strategy = outcome.sequences[0], plan.options, outcome.job.strategy
        tokens = (*self._beginning(recording), *output.tokens)
        quality, temperature = None, strategy.temperature if isinstance(strategy, Sample) else 0.0
        if options.fallback:
            quality = self._quality(recording, outcome)
            temperature = quality.temperature
            if _is_decoded_again(recording, quality, options):
                kept = outcome.encoded if recording.encoded is None else None
                if kept and self._stays_as_wide(recording, plan, strategy):
                    outputs = self._manifest.graphs["encoder"].outputs
                    recording.encoded = {tensor.name: kept[tensor.slot] for tensor in outputs}
                recording.attempt += 1
                return
            if is_silent(quality, options):
                recording.leave_out(self._log_mel.frames)
                return
        before = len(recording.segments)

        def with_words(segments: list[TimedTokens]) -> list[TimedTokens]:
            return self._with_words(segments, recording, plan, outcome, quality)

        begin, window = self.speech.timestamp_begin, self._log_mel.frames
        recording.add(output, tokens, begin, window, with_words)
        outcome.encoded = None  # as large as the window's caches
        if not options.condition_on_previous_text or temperature > FORGETS_ABOVE:
            recording.context = ()
        else:
            new = recording.segments[before:]
            read = [token for segment in new for token in self._read_next(segment)]
            most = self._manifest.model.max_target_positions // 2
            recording.context = (*recording.context, *read)[-most:]

    def _quality(self, recording: Recording, outcome: DecodedJob[Any]) -> Quality:
        output, strategy = outcome.sequences[0], outcome.job.strategy
        text = self.text((*self._beginning(recording), *output.tokens)) or ""
        return quality_of(output, text, outcome.observed, recording.attempt, strategy)

    def _is_kept(self, recording: Recording, plan: SpeechPlan, outcome: DecodedJob[Any]) -> bool:
        """Return whether the encoder's outputs are kept, to time words or for the next attempt."""
        return bool(plan.options.word_timestamps) or self._reads_kept(recording, plan, outcome)

    def _reads_kept(self, recording: Recording, plan: SpeechPlan, outcome: DecodedJob[Any]) -> bool:
        """Return whether the next attempt is the first one to read what is kept of this one."""
        if not plan.options.fallback or recording.encoded is not None or not outcome.sequences:
            return False
        try:
            quality = self._quality(recording, outcome)
        except TokenizerError:  # `add` meets it, too
            return False
        is_again = _is_decoded_again(recording, quality, plan.options)
        return is_again and self._stays_as_wide(recording, plan, outcome.job.strategy)

    def _stays_as_wide(self, recording: Recording, plan: SpeechPlan, strategy: Strategy) -> bool:
        """Return whether the next attempt has as many rows.

        Otherwise it waits for a batch of its own, and so much memory should not wait with it.
        """
        following = plan.strategy_of(recording.windows, recording.attempt + 1, self._rows)
        return following.width == strategy.width

    def _with_words(
        self,
        segments: list[TimedTokens],
        recording: Recording,
        plan: SpeechPlan,
        outcome: DecodedJob[Any],
        quality: Quality | None,
    ) -> list[TimedTokens]:
        segments = [dataclasses.replace(segment, quality=quality) for segment in segments]
        if not plan.options.word_timestamps or self._codec is None:
            return segments
        if outcome.encoded is None:  # nothing was decoded
            return [dataclasses.replace(segment, words=()) for segment in segments]
        window = SpokenWindow(
            self.prompt(plan, recording.language),
            recording.spoken_frames(self._log_mel),
            recording.offset,
            recording.spoken,
            self.speech.language_of(recording.language),
        )
        return self._timer.timed(segments, outcome.encoded, window, self._codec.stream)

    def _read_next(self, segment: TimedTokens) -> tuple[int, ...]:
        text = self.text(segment.tokens)
        if segment.start == segment.end or (text is not None and not text.strip()):
            return ()
        begin = self.speech.timestamp_begin or 0
        repeated = all(token >= begin for token in segment.tokens[-2:])
        return segment.tokens[:-1] if repeated else segment.tokens

    def prompt(self, plan: SpeechPlan, language: int | None) -> tuple[int, ...]:
        """Return the prompt of a text without timestamps."""
        named = [] if language is None else [language]
        instructions = plan.prompt.of_texts(self.speech).instructions(self.speech)
        return (self._manifest.model.start_token_id, *named, *instructions)

    def segments(
        self, recording: Recording, begin: int, *, skip_special_tokens: bool
    ) -> list[Segment]:
        """Return the segments of a recording from index `begin` on."""
        audio = recording.audio
        return [
            Segment(
                *audio.original(s.start, s.end),
                self.text(s.tokens, skip_special_tokens=skip_special_tokens),
                s.tokens,
                None if s.words is None else _words([s], audio),
                s.quality,
            )
            for s in recording.segments[begin:]
        ]

    def transcript(
        self,
        parts: Sequence[Recording],
        segments: Sequence[Segment],
        *,
        skip_special_tokens: bool,
    ) -> Result:
        """Create the result of a recording after its last window.

        Args:
            segments: of all parts; none if a recording is neither timed nor cut
        """
        audio, timed = parts[0].audio, [s for part in parts for s in part.segments]
        tokens = tuple(token for segment in timed for token in segment.tokens)
        text = self.text(tokens, skip_special_tokens=skip_special_tokens)
        if timed and not segments:
            has_words = [s for s in timed if s.words is not None]
            words = _words(has_words, audio) if has_words else None
            qualities = {segment.quality for segment in timed}
            quality = qualities.pop() if len(qualities) == 1 else None  # of several windows, none
            segments = (Segment(0.0, audio.duration, text, tokens, words, quality),)
        ended: FinishReason = "end" if all(part.ended for part in parts) else "length"
        return Result(
            None if text is None else text.removeprefix(" "),  # each word has one
            tokens,
            sum(part.log_probability for part in parts),
            ended if timed else "empty",
            segments=tuple(segments),
            language=self.speech.language_of(parts[0].language),
            end_token=parts[-1].end_token,
            score=sum(part.score for part in parts),
            warnings=audio.defects,
            voice=None if audio.voice is None else audio.voice.spans,
            language_probability=parts[0].language_probability,
        )

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Decode tokens without timestamps; None without tokenizers."""
        if self._codec is None:
            return None
        begin = self.speech.timestamp_begin
        return self._codec.decode(
            [t for t in tokens if begin is None or t < begin],
            skip_special_tokens=skip_special_tokens,
        )


def _is_decoded_again(recording: Recording, quality: Quality, options: GenerationOptions) -> bool:
    """Return whether an attempt at a window is followed by another one."""
    return recording.attempt + 1 < len(TEMPERATURES) and is_doubtful(quality, options)


def _words(segments: Sequence[TimedTokens], audio: Spectrogram) -> tuple[Word, ...]:
    return tuple(
        Word(*audio.original(word.start, word.end), word.text, word.probability)
        for segment in segments
        for word in segment.words or ()
    )


def quality_of(
    output: TokenSequence, text: str, no_speech: float | None, attempt: int, strategy: Strategy
) -> Quality:
    """Judge the output of an attempt.

    Args:
        no_speech: probability of the token for no speech; None: the model was not run
    """
    penalty = strategy.length_penalty if isinstance(strategy, Beam) else 0.0
    total = output.score * max(1, output.count) ** penalty
    return Quality(
        total / (len(output.tokens) + 1),
        compression_ratio(text),
        no_speech or 0.0,
        TEMPERATURES[attempt],
    )


def compression_ratio(text: str) -> float:
    """Return the length of a text in UTF-8 divided by its length compressed by zlib."""
    encoded = text.strip().encode()
    return len(encoded) / len(zlib.compress(encoded))


def is_doubtful(quality: Quality, options: GenerationOptions) -> bool:
    """Return whether a window should be decoded again."""
    if _improbable(quality, options) and _has_no_speech(quality, options):
        return False
    most = options.compression_ratio_threshold
    repeats = most is not None and quality.compression_ratio > most
    return repeats or _improbable(quality, options)


def is_silent(quality: Quality, options: GenerationOptions) -> bool:
    """Return whether a window has no speech."""
    least = options.log_probability_threshold
    is_probable = least is not None and quality.average_log_probability > least
    return _has_no_speech(quality, options) and not is_probable


def _improbable(quality: Quality, options: GenerationOptions) -> bool:
    least = options.log_probability_threshold
    return least is not None and quality.average_log_probability < least


def _has_no_speech(quality: Quality, options: GenerationOptions) -> bool:
    most = options.no_speech_threshold
    return most is not None and quality.no_speech_probability > most
