"""Results of generation, and their conversion to plain data, a line of text, JSON or subtitles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal, TypeVar, get_args

from dragoman.errors import DragomanError
from dragoman.files.text_lines import one_line

from ..arguments import StoppedError
from ..backends.interface import DeviceLostError

Outcome = TypeVar("Outcome")
FinishReason = Literal["end", "length", "empty", "rejected"]

NO_OUTPUT = "found no output that all rules and phrases allow"


class RejectedError(DragomanError):
    """An input cannot be decoded."""


class TooManyTokensError(RejectedError):
    """A source has more tokens than the model, or its engines, can read."""


@dataclass(frozen=True)
class Word:
    """A word of a transcript."""

    start: float
    end: float
    """`start` and `end`: seconds from the beginning of the audio."""
    text: str
    """The word with the space before it and the punctuation around it."""
    probability: float
    """Mean probability of its tokens among text tokens."""


@dataclass(frozen=True)
class Quality:
    """How doubtful the output for a window of speech is."""

    average_log_probability: float
    """Mean log-probability of the tokens of the window, the end token included, under the rules."""
    compression_ratio: float
    """Length of the window's text in bytes, divided by its length compressed by zlib; large if it
    repeats itself."""
    no_speech_probability: float
    """Probability that the window has no speech."""
    temperature: float
    """Temperature at which the tokens were sampled; 0: greedy or beam search."""


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, between two times."""

    start: float
    end: float
    """`start` and `end`: seconds from the beginning of the audio; with `word_timestamps` and
    timestamps, those of its words."""
    text: str | None
    """Text of the segment; None for a bundle without tokenizers."""
    tokens: tuple[int, ...]
    """Token ids, including timestamps."""
    words: tuple[Word, ...] | None = None
    """Its words; None unless requested."""
    quality: Quality | None = None
    """That of its window; None without `fallback`, and for a single segment of several windows."""


@dataclass(frozen=True)
class Alternative:
    """One of the best tokens at a step."""

    token: int
    text: str | None
    """Text of the token; None for a bundle without tokenizers."""
    log_probability: float
    """Natural logarithm of its probability among all tokens."""


@dataclass(frozen=True)
class Hypothesis:
    """One of the outputs for an input."""

    text: str | None
    """The decoded tokens; None for a bundle without tokenizers."""
    tokens: tuple[int, ...]
    """Generated ids without start and end token. A forced first token, such as a language, comes
    first, then the prefix."""
    score: float
    """Ranks hypotheses. With beams, it is the sum of log-probabilities after all rules, divided by
    length ** length_penalty; the length includes the end token and excludes the prefix. Otherwise
    it equals `log_probability`, or with `renormalize_logits` the sum of log-probabilities among
    allowed tokens."""
    log_probability: float
    """Sum of `token_log_probabilities`."""
    finish_reason: Literal["end", "length"]
    """How it ended. "end": by an end token; "length": the limit was reached."""
    end_token: int | None
    """The end token; None: the limit was reached."""
    token_log_probabilities: tuple[float, ...]
    """Natural logarithms of the model's own probabilities of `tokens` and the end token, if any; 0
    for prefix tokens and forced tokens."""
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    """The best tokens at each of these steps, best first; empty for prefix tokens and forced
    tokens, and unless requested."""


@dataclass(frozen=True)
class Result:
    """The output for one input."""

    text: str | None
    """The decoded tokens; None for a bundle without tokenizers. Of speech, it is the texts of all
    segments without the space before the first word."""
    tokens: tuple[int, ...]
    """Generated ids without start and end token; for speech, of all segments."""
    log_probability: float
    """Sum of the natural logarithms of the probabilities of the generated tokens, including the end
    token."""
    finish_reason: FinishReason
    """How it ended. "end": by an end token; "length": the limit was reached; "empty": the input
    had no tokens or no speech; "rejected": the input cannot be decoded, see `error`. Other inputs
    are not affected."""
    error: str | None = None
    """The reason for "rejected", else None."""
    segments: tuple[Segment, ...] | None = None
    """For speech, at least one segment for each window that was not left out, in order; a single
    segment without timestamps. None for text."""
    language: str | None = None
    """For speech, the code of the requested or detected language; None for text and for models
    without languages."""
    end_token: int | None = None
    """The end token of the output, for speech of the last window; None: the limit was reached, or
    there is no output."""
    score: float = 0.0
    """For text, the score of the best hypothesis; for speech, the sum of the scores of windows."""
    truncated: bool = False
    """For text, whether the source was cut, see `GenerationOptions.truncate`."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """For text, the requested hypotheses; the first is the output. Beams are ranked; samples are in
    the order of their numbers. Empty for an input that was not decoded, and for speech."""
    warnings: tuple[str, ...] = ()
    """Lines for the user: what is missing or damaged in an audio file, or which sentences of a
    split text were cut."""
    unknown_characters: str = ""
    """For text, the characters of the source that the vocabulary lacks, in order; empty for token
    ids."""
    voice: tuple[tuple[float, float], ...] | None = None
    """For speech decoded with `vad`, begin and end of each stretch of speech in seconds; the rest
    of the recording was not decoded; else None."""
    language_probability: float | None = None
    """For speech, the probability of a detected language among all of the model's; else None."""


@dataclass(frozen=True)
class SpokenLanguage:
    """The language of a recording."""

    language: str | None
    """Its code; None: nobody speaks, or see `error`."""
    probability: float | None
    """Probability of the language among all of the model's."""
    error: str | None = None
    """Why the recording cannot be decoded, else None."""


@dataclass(frozen=True)
class TranscriptUpdate:
    """What has been transcribed of a recording since the last update of it."""

    index: int
    """Index of the recording in the call."""
    segments: tuple[Segment, ...]
    """New segments, which do not change any more. A recording without timestamps has one at its
    end; if it is cut at silence, one for each part."""
    done: float
    """Share of the recording that is decoded, from 0 to 1."""
    result: Result | None = None
    """The whole output, in the last update; None: more follows."""


@dataclass(frozen=True)
class LiveUpdate:
    """What has become certain of speech that is still arriving."""

    text: str
    """Text that follows the texts of earlier updates of the segment."""
    segment: Segment | None = None
    """The whole segment, in its last update; None: more follows."""


@dataclass(frozen=True)
class Token:
    """One token of a stream."""

    id: int
    """The token."""
    text: str | None
    """Text that the token adds; empty for the end token and while a character is incomplete. None
    for a bundle without tokenizers."""
    log_probability: float
    """Natural logarithm of its probability."""
    is_end: bool = False
    """Whether it is the end token, which ends the output, or a window of speech."""


class UnfinishedError(DeviceLostError):
    """The device failed permanently during a call.

    Attributes:
        finished: finished results by index of their input
    """

    def __init__(self, message: str, finished: Mapping[int, Any]) -> None:
        super().__init__(message)
        self.finished = dict(finished)


def collected(results: Iterable[tuple[int, Outcome]], count: int) -> list[Outcome]:
    """Return the results of a call in the order of its inputs.

    If it was stopped or the device failed, the error holds the finished results.
    """
    finished: dict[int, Outcome] = {}
    try:
        finished.update(results)
    except StoppedError as error:
        error.finished = dict(finished)
        raise
    except DeviceLostError as error:
        raise UnfinishedError(str(error), finished) from error
    return [finished[index] for index in range(count)]


def text_line(result: Result) -> str:
    """Return the text of a result on one line; token ids for a bundle without tokenizers."""
    line = one_line(result.text, result.tokens)
    return line if result.segments is None else line.strip()


def json_line(result: Result) -> str:
    """Return a result as a JSON object on one line."""
    return json.dumps(result_data(result), ensure_ascii=False, allow_nan=False)


_OF_OUTPUTS = ("text", "tokens", "log_probability", "score", "finish_reason", "end_token")


def result_data(result: Result) -> dict[str, Any]:
    """Return a result as plain data, with hypotheses for text or segments for speech."""
    data = _fields_of(result, *_OF_OUTPUTS, "error")
    if result.segments is None:
        data["truncated"] = result.truncated
        data |= {"warnings": result.warnings} if result.warnings else {}
        return data | {"hypotheses": [_hypothesis(h) for h in result.hypotheses]}
    return data | {
        "language": result.language,
        "language_probability": result.language_probability,
        "segments": [_segment(segment) for segment in result.segments],
        "warnings": result.warnings,
        **({} if result.voice is None else {"voice": result.voice}),
    }


def json_of_update(update: LiveUpdate) -> str:
    """Return an update of live speech as a JSON object on one line."""
    segment = None if update.segment is None else _segment(update.segment)
    data = {"text": update.text, "segment": segment}
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _segment(segment: Segment) -> dict[str, Any]:
    data = _fields_of(segment, "start", "end", "text", "tokens")
    if segment.words is not None:
        data["words"] = [vars(word) for word in segment.words]
    return data if segment.quality is None else data | vars(segment.quality)


def _hypothesis(hypothesis: Hypothesis) -> dict[str, Any]:
    return {
        **_fields_of(hypothesis, *_OF_OUTPUTS, "token_log_probabilities"),
        "alternatives": [[vars(a) for a in best] for best in hypothesis.alternatives],
    }


def _fields_of(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


SubtitleFormat = Literal["srt", "vtt", "tsv", "lrc"]
SUBTITLE_FORMATS: tuple[SubtitleFormat, ...] = get_args(SubtitleFormat)


def subtitles(result: Result, form: SubtitleFormat) -> str:
    """Format a transcript as subtitles; see `subtitle_entries`."""
    return "".join(subtitle_entries(result.segments or (), form))


def subtitle_entries(segments: Iterable[Segment], form: SubtitleFormat) -> Iterator[str]:
    """Format a transcript as subtitles: yield the heading, if there is one, and each entry's lines.

    Args:
        segments: the transcript, which may still be arriving
        form: srt (SubRip) and tsv (milliseconds, as openai-whisper writes them) have an entry for
            each word or, without words, each segment; vtt (WebVTT, W3C) and lrc have one for each
            segment, with the times of words within it
    """
    lasting = _lasting(map(_at_least_a_frame, segments))
    if form == "vtt":
        yield "WEBVTT\n\n"
        for segment in lasting:
            yield f"{span(segment)}\n{_timed_line(segment, _vtt_text, _vtt_word)}\n\n"
        return
    if form == "lrc":
        for segment in lasting:
            yield f"[{_minutes(segment.start)}]{_timed_line(segment, _line, _lrc_word)}\n"
        return
    parts = (part for segment in lasting for part in _entries(segment))
    if form == "srt":
        for number, part in enumerate(parts, 1):
            yield f"{number}\n{span(part, ',')}\n{_line(part.text)}\n\n"
        return
    yield "start\tend\ttext\n"
    for part in parts:
        yield f"{_milliseconds(part.start)}\t{_milliseconds(part.end)}\t{_line(part.text)}\n"


FRAME = 0.02
"""Seconds; the least time that words are shown."""


def _at_least_a_frame(segment: Segment) -> Segment:
    """Extend a segment whose words are all at one time; attention may pass several at once."""
    if not segment.words:
        return segment
    return replace(segment, end=max(segment.end, segment.start + FRAME))


def _lasting(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments that take at least a millisecond: none after the recording."""
    return (s for s in segments if _milliseconds(s.end) > _milliseconds(s.start))


def _entries(segment: Segment) -> Sequence[Segment | Word]:
    """Return the words of a segment; those that take no time are shown with the next one."""
    if not segment.words:
        return (segment,)
    entries, text, start = list[Word](), "", None
    for word in segment.words:
        text, start = text + word.text, word.start if start is None else start
        if _milliseconds(word.end) > _milliseconds(start):
            entries.append(replace(word, start=start, text=text))
            text, start = "", None
    if text and entries:
        entries[-1] = replace(entries[-1], text=entries[-1].text + text)
    elif text:
        return (replace(segment, text=text),)
    return entries


def _timed_line(
    segment: Segment,
    write: Callable[[str | None], str],
    mark: Callable[[Word, bool], str],
) -> str:
    """Write the words of a segment on a line.

    `write` writes the text of a segment without words; `mark` writes a word, with its time if that
    is later than all before it on the line.
    """
    if not segment.words:
        return write(segment.text)
    line, latest = "", segment.start
    for word in segment.words:
        is_later = latest < word.start < segment.end
        latest = word.start if is_later else latest
        line += " " * word.text[:1].isspace() + mark(word, is_later)
    return line.strip()


def _vtt_text(text: str | None) -> str:
    return escape(_line(text), quote=False)


def _vtt_word(word: Word, is_later: bool) -> str:
    time = f"<{clock(word.start)}>" if is_later else ""
    return f"{time}<c>{_vtt_text(word.text)}</c>"


def _lrc_word(word: Word, is_later: bool) -> str:
    return f"{f'<{_minutes(word.start)}>' if is_later else ''}{_line(word.text)}"


def _line(text: str | None) -> str:
    """Return a text on one line, without arrows, which would be parsed as times."""
    return " ".join((text or "").split()).replace("-->", "->")


def span(part: Segment | Word, point: str = ".") -> str:
    """Format the times of a part as in subtitles: 00:00:01.500 --> 00:00:02.000."""
    return f"{clock(part.start, point)} --> {clock(part.end, point)}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def clock(seconds: float, point: str = ".") -> str:
    """Format a time as in subtitles: 01:02:03.450."""
    minutes, thousandths = divmod(_milliseconds(seconds), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{thousandths // 1000:02}{point}{thousandths % 1000:03}"


def _minutes(seconds: float) -> str:
    minutes, hundredths = divmod(round(seconds * 100), 6000)
    return f"{minutes:02}:{hundredths // 100:02}.{hundredths % 100:02}"
