"""Judges the output for a window, and decodes it again if it is doubtful.

The rules are those of openai-whisper (Radford et al. 2022, section 4.5): a window whose text
repeats itself or is improbable is sampled at higher and higher temperatures. A window without
speech is left out.
"""

from __future__ import annotations

import zlib

from dragoman.settings.generation import GenerationOptions

from ..decoding.beam_search import Beam
from ..decoding.greedy_and_sampling import BestSample, Sample
from ..decoding.results import Quality
from ..decoding.search import Strategy, TokenSequence

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures of the attempts at a window; the first is greedy or beam search."""

SAMPLES = 5
"""Number of samples of each further attempt, of which the most probable one is the output."""

FORGETS_ABOVE = 0.5
"""Temperature above which a text is not read by the model for the next window."""


def strategy_of(window: int, attempt: int, first: Strategy, rows: int | None) -> Strategy:
    """Return the strategy of an attempt at a window of a recording.

    The random numbers of each window, attempt and sample are always the same.

    Args:
        attempt: number of earlier attempts
        first: the strategy of the first attempt
        rows: maximum number of rows of a batch; None: unlimited
    """
    if attempt == 0:
        return first
    number = (window * len(TEMPERATURES) + attempt) * SAMPLES
    return BestSample(
        [
            Sample(0, number + i, temperature=TEMPERATURES[attempt])
            for i in range(min(SAMPLES, rows or SAMPLES))
        ]
    )


def quality_of(
    output: TokenSequence, text: str, no_speech: float | None, attempt: int, strategy: Strategy
) -> Quality:
    """Judge the output of an attempt.

    Args:
        output: output whose score is that of distributions over the allowed tokens
        text: its text without timestamps
        no_speech: probability of the token for no speech; None: the model was not run
        attempt: number of earlier attempts
        strategy: the strategy of this attempt
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
    """Return whether a window has no speech, and its text is to be left out."""
    least = options.log_probability_threshold
    is_probable = least is not None and quality.average_log_probability > least
    return _has_no_speech(quality, options) and not is_probable


def _improbable(quality: Quality, options: GenerationOptions) -> bool:
    least = options.log_probability_threshold
    return least is not None and quality.average_log_probability < least


def _has_no_speech(quality: Quality, options: GenerationOptions) -> bool:
    most = options.no_speech_threshold
    return most is not None and quality.no_speech_probability > most
