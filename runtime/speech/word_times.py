"""Times of words by cross-attention, as openai-whisper computes them.

Dynamic time warping (Sakoe & Chiba 1978) finds the path through tokens and frames with the most
attention. Implausibly long words at the ends of sentences and segments are shortened, and
punctuation belongs to the word beside it.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Backend, BackendError
from ..decoding.results import Word
from ..format.contract import Slot
from ..format.manifest import Manifest
from ..format.neutral_graphs import aligning_heads, aligning_layers
from ..texts.codecs.interface import TextStream
from .timestamps import FRAMES_PER_TIMESTAMP, TimedTokens

EncodedSlots = Mapping[Slot, NDArray[Any]]
"""The encoder's outputs for one window, and the mask of the source."""

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose characters are timed one by one."""
BEFORE_WORDS = "\"'“¿([{-"
AFTER_WORDS = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
ENDS_OF_SENTENCES = ".。!！?？"  # noqa: RUF001

FRAMES_PER_SECOND = 50
"""Positions of the encoder in a second."""

LONGEST_MEDIAN = 0.7
"""Seconds; the median duration of words counts as at most that."""
PAUSE = 4
"""A pause is so many times as long as a word."""
TOO_EARLY = 0.5
"""Seconds by which a word may begin before its segment, or end after it."""

SORTED_MIDDLE = (
    *((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6)),
    *((2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4)),
)
"""Exchanges after which the fourth of seven numbers is their median (Paeth 1990)."""
WIDTH = 7
"""Frames that the median is taken of."""
IN_CACHE = 2**14
"""Numbers whose medians are taken at once."""


@dataclass(frozen=True)
class TokenTimes:
    """Where tokens are in a window of audio."""

    path: NDArray[np.int64]
    """(token, frame) in the order of time, int64 [steps, 2]; the last token is the end."""
    probabilities: NDArray[np.float32]
    """Of each token among text tokens, as the model expects it, float32 [tokens]; 0 for tokens
    beyond the decoder's positions."""

    @property
    def starts(self) -> NDArray[np.float64]:
        """The seconds at which each token begins, and at which the last one ends, [tokens + 1]."""
        first = np.flatnonzero(np.diff(self.path[:, 0], prepend=-1))
        seconds: NDArray[np.float64] = self.path[first, 1] / FRAMES_PER_SECOND
        return seconds


@dataclass(frozen=True)
class SpokenWindow:
    """A decoded window of a recording."""

    prompt: Sequence[int]
    """What the decoder reads before the text, ending with the token without timestamps."""
    frames: int
    """Number of the window's frames that are audio."""
    offset: float = 0.0
    """Seconds from the beginning of the audio to that of the window."""
    spoken: float = 0.0
    """Seconds until which earlier segments last."""
    language: str | None = None
    """Code of the language; None: the model has one."""


class WordTimer:
    """Aligns the tokens of a transcript with its audio."""

    def __init__(self, manifest: Manifest, backend: Backend) -> None:
        self._manifest, self._backend = manifest, backend
        named = manifest.generation.heads_that_align
        place = {layer: n for n, layer in enumerate(aligning_layers(manifest.model, named))}
        heads = aligning_heads(manifest.model, named)
        self._heads = tuple(np.array([(place[layer], head) for layer, head in heads]).T)

    def check(self) -> None:
        """Raise a `BackendError` if words cannot be timed."""
        if "alignment" not in self._manifest.graphs:
            raise BackendError(
                f"times of words: expected a bundle with an alignment graph, found none in "
                f"{self._manifest.name}: build it again"
            )
        self._backend.check_alignment()

    def timed(
        self,
        segments: Sequence[TimedTokens],
        encoded: EncodedSlots,
        window: SpokenWindow,
        stream: Callable[[], TextStream],
    ) -> list[TimedTokens]:
        """Set the times of a window's words and segments; none is before an earlier one."""
        special = self._manifest.model.end_token_id
        texts = [[token for token in segment.tokens if token < special] for segment in segments]
        tokens = [token for text in texts for token in text]
        spaces = window.language not in WITHOUT_SPACES
        words = [spans_of(text, stream(), spaces=spaces) for text in texts]
        usual, spoken, found = 0.0, window.spoken, list[TimedTokens]()
        if spans := [span for own in words for span in own]:
            usual = _place(spans, self.times(encoded, window.prompt, tokens, window.frames))
        for segment, own in zip(segments, words, strict=True):
            _join_punctuation(own)
            for span in own:
                span.start, span.end = (
                    max(spoken, round(window.offset + t, 2)) for t in (span.start, span.end)
                )
            start, end = max(spoken, segment.start), max(spoken, segment.end)
            fitted = replace(segment, start=start, end=end, words=())
            if own := [span for span in own if span.text]:
                fitted = _fitted(fitted, own, usual, spoken)
            spoken = fitted.end
            found.append(fitted)
        return found

    def times(
        self, encoded: EncodedSlots, prompt: Sequence[int], tokens: Sequence[int], frames: int
    ) -> TokenTimes:
        """Align the text tokens of a window."""
        model = self._manifest.model
        read = [*prompt, *tokens, model.end_token_id][: model.max_target_positions]
        logits, attention = self._backend.align(encoded, np.array([read]))
        first = len(prompt) - 1
        last = first + len(tokens)
        heads = attention[0][self._heads][..., : max(1, frames // FRAMES_PER_TIMESTAMP)]
        matrix = _normalized(heads)[first : last + 1]
        text = logits[0, first:last, : model.end_token_id].astype(np.float32)
        text -= text.max(axis=1, keepdims=True)
        np.exp(text, out=text)
        expected = np.array(tokens)[: len(text)]
        probabilities = np.zeros(len(tokens), np.float32)
        probabilities[: len(text)] = text[np.arange(len(text)), expected] / text.sum(axis=1)
        if not (np.isfinite(matrix).all() and np.isfinite(probabilities).all()):
            raise BackendError("the model's attention and logits are not finite numbers")
        # The decoder reads no token beyond its positions, such as the last one of a longest output.
        unread = [[token, matrix.shape[1] - 1] for token in range(len(matrix), len(tokens) + 1)]
        path = np.concatenate([warped(-matrix), np.array(unread, np.int64).reshape(-1, 2)])
        return TokenTimes(path, probabilities)


def _normalized(heads: NDArray[np.float32]) -> NDArray[np.float32]:
    """Average attention [heads, tokens, frames] of heads that are each brought to one scale."""
    heads = heads / np.maximum(heads.sum(axis=-1, keepdims=True), 1e-30)
    deviation = np.maximum(heads.std(axis=1, keepdims=True), 1e-30)
    scaled = (heads - heads.mean(axis=1, keepdims=True)) / deviation
    average: NDArray[np.float32] = medians(scaled).mean(axis=0)
    return average


def medians(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace each number by the median of seven around it in the last axis, mirrored at the ends.

    Fewer than four numbers stay as they are.
    """
    side, length = WIDTH // 2, values.shape[-1]
    if length <= side:
        return values
    rows = values.reshape(-1, length)
    found, at_once = np.empty_like(rows), max(1, IN_CACHE // length)
    for first in range(0, len(rows), at_once):
        part = slice(first, first + at_once)
        wide = np.pad(rows[part], ((0, 0), (side, side)), mode="reflect")
        window = [wide[:, begin : begin + length].copy() for begin in range(WIDTH)]
        spare = np.empty_like(window[0])
        for one, other in SORTED_MIDDLE:
            np.minimum(window[one], window[other], out=spare)
            np.maximum(window[one], window[other], out=window[other])
            window[one], spare = spare, window[one]
        found[part] = window[side]
    return found.reshape(values.shape)


def warped(cost: NDArray[np.float32]) -> NDArray[np.int64]:
    """Find the cheapest path through a matrix from its first to its last number.

    Each step goes down, right, or both; where two are as cheap, right. Sums are float32. A path to
    row i and column j is in place i of diagonal i + j.

    Returns:
        the rows and columns of the path, [steps, 2]
    """
    rows, columns = cost.shape
    skewed = np.zeros((rows + columns + 1, rows + 1), np.float32)
    for row in range(1, rows + 1):
        skewed[row + 1 : row + 1 + columns, row] = cost[row - 1]
    goes_both, goes_down = np.zeros((2, *skewed.shape), np.bool_)
    before, last, new, least = np.full((4, rows + 1), np.inf, np.float32)
    before[0] = 0
    for diagonal in range(2, rows + columns + 1):
        first, end = max(1, diagonal - columns), min(rows, diagonal - 1) + 1
        both, down, right = before[first - 1 : end - 1], last[first - 1 : end - 1], last[first:end]
        is_both, is_down = goes_both[diagonal, first:end], goes_down[diagonal, first:end]
        some, sums = least[first:end], new[first:end]
        np.less(both, np.minimum(down, right, out=some), out=is_both)
        np.less(down, np.minimum(both, right, out=some), out=is_down)
        sums[:] = right
        np.copyto(sums, down, where=is_down)
        np.copyto(sums, both, where=is_both)
        sums += skewed[diagonal, first:end]
        before, last, new = last, new, before
        new.fill(np.inf)
    path, row, column = [], rows, columns
    while row or column:
        path.append((row - 1, column - 1))
        both_ways, goes = goes_both[row + column, row], goes_down[row + column, row]
        row, column = row - int(both_ways or goes), column - int(both_ways or not goes)
    return np.array(path[::-1])


@dataclass
class _Span:
    """A word while its times are being settled."""

    text: str
    tokens: int
    """Number of tokens."""
    start: float = 0.0
    end: float = 0.0
    """`start` and `end`: seconds from the beginning of the window."""
    probability: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start


def spans_of(tokens: Sequence[int], stream: TextStream, *, spaces: bool) -> list[_Span]:
    """Split tokens into words, each with the space before it; punctuation is a word of its own.

    Args:
        spaces: whether words are separated by spaces; otherwise characters are words
    """
    spans, held = list[_Span](), 0
    pieces = [(stream.step(token), 1) for token in tokens]
    for piece, count in (*pieces, (stream.rest(), 0)):
        held += count
        if not piece:
            continue
        begins = piece.startswith(" ") or piece.strip() in string.punctuation
        if not spaces or begins or not spans:
            spans.append(_Span(piece, held))
        else:
            spans[-1].text += piece
            spans[-1].tokens += held
        held = 0
    if spans:
        spans[-1].tokens += held
    return spans


def _place(spans: Sequence[_Span], times: TokenTimes) -> float:
    """Set the times and probabilities of words; return the usual duration of a word."""
    starts, first = times.starts, 0
    for span in spans:
        span.start, span.end = float(starts[first]), float(starts[first + span.tokens])
        own = times.probabilities[first : first + span.tokens]
        span.probability = float(own.mean()) if own.size else 0.0
        first += span.tokens
    durations = [span.seconds for span in spans if span.seconds]
    usual = min(LONGEST_MEDIAN, float(np.median(durations))) if durations else 0.0
    if durations:
        _shorten_at_sentences(spans, 2 * usual)
    return usual


def _shorten_at_sentences(spans: Sequence[_Span], longest: float) -> None:
    """Cut what is too long: marks at the end of a sentence, and words that begin the next."""
    for previous, span in pairwise(spans):
        if span.seconds <= longest:
            continue
        if span.text in ENDS_OF_SENTENCES:
            span.end = span.start + longest
        elif previous.text in ENDS_OF_SENTENCES:
            span.start = span.end - longest


def _join_punctuation(spans: Sequence[_Span]) -> None:
    """Move the text, not the times, of punctuation to the word beside it; it may be left empty."""
    following = len(spans) - 1
    for index in range(len(spans) - 2, -1, -1):
        span = spans[index]
        if span.text.startswith(" ") and span.text.strip() in BEFORE_WORDS:
            _give(span, spans[following], before=True)
        else:
            following = index
    previous = 0
    for index in range(1, len(spans)):
        span = spans[index]
        if not spans[previous].text.endswith(" ") and span.text in AFTER_WORDS:
            _give(span, spans[previous], before=False)
        else:
            previous = index


def _give(span: _Span, to: _Span, *, before: bool) -> None:
    to.text = span.text + to.text if before else to.text + span.text
    span.text = ""


def _fitted(segment: TimedTokens, words: list[_Span], usual: float, spoken: float) -> TimedTokens:
    longest, first, last = 2 * usual, words[0], words[-1]
    second = words[1] if len(words) > 1 else None
    slow = first.seconds > longest
    slow = slow or (second is not None and second.end - first.start > 2 * longest)
    if first.end - spoken > PAUSE * usual and slow:  # after a pause, words begin late
        if second is not None and second.seconds > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0.0, first.end - longest)
    if segment.start < first.end and segment.start - TOO_EARLY > first.start:
        first.start = max(first.start, min(first.end - usual, segment.start))
    if segment.end > last.start and segment.end + TOO_EARLY < last.end:
        last.end = min(last.end, max(last.start + usual, segment.end))
    timed = tuple(Word(round(w.start, 3), round(w.end, 3), w.text, w.probability) for w in words)
    return replace(segment, start=timed[0].start, end=timed[-1].end, words=timed)
