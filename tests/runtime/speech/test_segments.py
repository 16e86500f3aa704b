"""Segments of a window against Hugging Face's long-form generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from dragoman.runtime.speech.timestamps import TimedTokens, split_segments

BEGIN = 100
Split = tuple[list[TimedTokens], int]


def expected_of(tokens: list[int], first_frame: int, frames: int) -> Split:
    oracle: Any = WhisperGenerationMixin
    segments, advance = oracle._retrieve_segment(
        seek_sequence=torch.tensor(tokens, dtype=torch.long),
        seek_outputs=[None],
        time_offset=torch.tensor([first_frame]).to(torch.float64) * 0.02 / 2,
        timestamp_begin=BEGIN,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 3, dtype=torch.long),
    )
    found = [
        TimedTokens(float(item["start"]), float(item["end"]), tuple(item["tokens"].tolist()))
        for item in segments
    ]
    return found, int(advance)


def split(tokens: list[int], first_frame: int, frames: int) -> Split:
    return split_segments(tokens, timestamp_begin=BEGIN, first_frame=first_frame, frames=frames)


@pytest.mark.parametrize("window", [(0, 3000), (2988, 3000), (5001, 17), (1, 1)])
@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [5],
        [5, 6, 7],
        [BEGIN],
        [BEGIN + 3],
        [BEGIN, 5, 6],
        [BEGIN, 5, BEGIN + 40],
        [BEGIN + 2, 5, 6],
        [BEGIN, 5, BEGIN + 40, BEGIN + 40],
        [BEGIN, 5, BEGIN + 40, BEGIN + 45, 6],
        [BEGIN, 5, BEGIN + 40, BEGIN + 45, 6, BEGIN + 60],
        [BEGIN, 5, BEGIN + 40, BEGIN + 40, 6, 7, BEGIN + 60, BEGIN + 71],
        [BEGIN, 5, BEGIN + 40, BEGIN + 40, 6, 7, BEGIN + 60, BEGIN + 71, 8],
        [BEGIN, 5, BEGIN + 40, BEGIN + 40, 6, 7, BEGIN + 60, BEGIN + 71, 8, BEGIN + 1500],
        [5, BEGIN + 40, BEGIN + 40, 6],
        [5, BEGIN + 40, BEGIN + 41, BEGIN + 42],
        [BEGIN + 40, BEGIN + 41],
    ],
)
def test_hand_made_tokens(tokens: list[int], window: tuple[int, int]) -> None:
    assert split(tokens, *window) == expected_of(tokens, *window)


@pytest.mark.parametrize("seed", range(50))
def test_random_tokens(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(20):
        count = int(generator.integers(0, 13))
        is_time = generator.random(count) < 0.5
        times = BEGIN + generator.integers(1, 1501, count)
        tokens = np.where(is_time, times, generator.integers(0, BEGIN, count)).tolist()
        window = int(generator.integers(0, 10**6)), int(generator.integers(1, 3001))
        assert split(tokens, *window) == expected_of(tokens, *window)


def test_the_end_of_a_window_with_any_number_of_frames() -> None:
    for frames in range(1, 3001):
        assert split([5], 0, frames) == expected_of([5], 0, frames)


def test_times_and_tokens_of_segments() -> None:
    tokens = [BEGIN, 1, 2, BEGIN + 50, BEGIN + 60, 3, BEGIN + 100, BEGIN + 100, 4, 5]
    segments, advance = split(tokens, 1000, 3000)
    assert segments == [
        TimedTokens(10.0, 11.0, (BEGIN, 1, 2, BEGIN + 50)),
        TimedTokens(11.2, 12.0, (BEGIN + 60, 3, BEGIN + 100, BEGIN + 100)),
    ]
    assert advance == 200  # 4 and 5 are decoded again


def test_no_word_is_lost_or_repeated() -> None:
    """A text whose words have times, decoded in windows that are cut anywhere."""
    generator = np.random.default_rng(0)
    bounds = np.cumsum(generator.integers(20, 400, 60)).tolist()  # in steps of 0.02 s
    words = [
        (begin, end, i) for i, (begin, end) in enumerate(zip([0, *bounds], bounds, strict=False))
    ]
    total = 2 * bounds[-1]
    heard: list[TimedTokens] = []
    seek = 0
    while seek < total:
        frames = min(3000, total - seek)
        tokens: list[int] = []
        for begin, end, word in words:
            if 2 * begin < seek or 2 * begin >= seek + frames:
                continue
            if 2 * end > seek + frames:  # extends beyond the window
                tokens += [BEGIN + begin - seek // 2, word]
                break
            tokens += [BEGIN + begin - seek // 2, word, BEGIN + end - seek // 2]
        segments, advance = split(tokens, seek, frames)
        heard += segments
        seek += advance
    spoken = [token for segment in heard for token in segment.tokens if token < BEGIN]
    assert spoken == list(range(60))
    for segment, (begin, end, _) in zip(heard, words, strict=True):
        assert (segment.start, segment.end) == pytest.approx((begin * 0.02, end * 0.02))


def test_a_pair_at_zero_seconds_does_not_stop_progress() -> None:
    assert split([BEGIN, BEGIN, 5], 0, 3000)[1] == 3000
