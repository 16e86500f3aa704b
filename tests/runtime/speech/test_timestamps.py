"""The processor of timestamp tokens against Hugging Face's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from dragoman.runtime.speech.timestamps import TimestampProcessor

END, NO_TIMESTAMPS, BEGIN, VOCABULARY = 20, 24, 25, 60
PROMPT = [21, 22, 23]


def expected_of(
    processor: TimestampProcessor, logits: NDArray[np.float32], generated: list[list[int]]
) -> NDArray[np.float32]:
    """Row by row: the processor takes prefixes of one length only."""
    kind: Any = GenerationConfig
    configuration = kind(
        no_timestamps_token_id=processor.no_timestamps_token_id,
        eos_token_id=processor.end_token_id,
        bos_token_id=processor.end_token_id,
        max_initial_timestamp_index=processor.max_initial_timestamp_index,
    )
    oracle = WhisperTimeStampLogitsProcessor(configuration, begin_index=len(PROMPT))
    rows = [
        oracle(torch.tensor([PROMPT + tokens]), torch.from_numpy(row[np.newaxis]))
        for tokens, row in zip(generated, logits, strict=True)
    ]
    return torch.cat(rows).numpy()


def check(
    processor: TimestampProcessor, logits: NDArray[np.float32], generated: list[list[int]]
) -> None:
    expected = expected_of(processor, logits.copy(), generated)
    np.testing.assert_array_equal(allowed_of(processor, logits, generated), expected)


def allowed_of(
    processor: TimestampProcessor, logits: NDArray[np.float32], generated: list[list[int]]
) -> NDArray[np.float32]:
    allowed = logits.copy()
    for row, tokens in zip(allowed, generated, strict=True):
        processor.apply(row, tokens)
    return allowed


def random_logits(rows: int, seed: int) -> NDArray[np.float32]:
    """Of rows that favour text, timestamps or neither; some tokens are suppressed."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, (rows, VOCABULARY)).astype(np.float32)
    logits[:, BEGIN:] += generator.uniform(-6, 6, (rows, 1)).astype(np.float32)
    logits[generator.random(logits.shape) < 0.1] = -np.inf
    return logits


@pytest.mark.parametrize("limit", [None, 0, 7, 50])
def test_the_first_token(limit: int | None) -> None:
    processor = TimestampProcessor(END, NO_TIMESTAMPS, limit)
    check(processor, random_logits(7, seed=1), [[]] * 7)


@pytest.mark.parametrize(
    "tokens",
    [
        [BEGIN],
        [BEGIN + 3],
        [BEGIN, 5],
        [BEGIN, 5, BEGIN + 2],
        [BEGIN, 5, BEGIN + 2, BEGIN + 2],
        [BEGIN, 5, BEGIN + 2, BEGIN + 4, 6, 7],
        [BEGIN, 5, BEGIN + 34],
        [BEGIN, 5, BEGIN + 34, BEGIN + 34],
        [5],
        [5, 6],
        [BEGIN, BEGIN],
        [5, 22, BEGIN + 1],
    ],
)
def test_after_hand_made_tokens(tokens: list[int]) -> None:
    processor = TimestampProcessor(END, NO_TIMESTAMPS, 50)
    check(processor, random_logits(11, seed=len(tokens)), [tokens] * 11)


@pytest.mark.parametrize("seed", range(20))
def test_after_random_tokens_of_unequal_lengths(seed: int) -> None:
    generator = np.random.default_rng(seed)
    generated = [
        generator.integers(0, VOCABULARY, generator.integers(0, 9)).tolist() for _ in range(13)
    ]
    check(TimestampProcessor(END, NO_TIMESTAMPS, 3), random_logits(13, seed), generated)


def test_no_timestamp_is_after_the_window() -> None:
    logits = np.zeros((3, VOCABULARY), np.float32)
    logits[:, BEGIN:] = 5.0
    found = allowed_of(
        TimestampProcessor(END, NO_TIMESTAMPS, 4, 9), logits, [[], [BEGIN, 5], [BEGIN + 9, 6]]
    )
    latest = [np.flatnonzero(np.isfinite(row))[-1] - BEGIN for row in found]
    assert latest[:2] == [4, 9] and latest[2] < 0


def test_timestamps_can_outweigh_a_text_token_together() -> None:
    processor = TimestampProcessor(END, NO_TIMESTAMPS)
    logits = np.full((2, VOCABULARY), -9, np.float32)
    logits[:, 5] = 2.0
    logits[0, BEGIN + 3 : BEGIN + 13] = 0.0  # ten together have log 10 = 2.3
    logits[1, BEGIN + 3 : BEGIN + 8] = 0.0  # five have log 5 = 1.6
    allowed = allowed_of(processor, logits, [[BEGIN, 6], [BEGIN, 6]])
    assert np.flatnonzero(np.isfinite(allowed[0]))[0] == BEGIN + 1
    assert allowed[1].argmax() == 5


def test_a_row_without_any_allowed_token() -> None:
    processor = TimestampProcessor(END, NO_TIMESTAMPS)
    check(processor, np.full((1, VOCABULARY), -np.inf, np.float32), [[BEGIN]])


def test_a_greedy_sequence_has_ordered_pairs_of_timestamps() -> None:
    """Begin and end alternate, times rise, and no segment is empty."""
    processor = TimestampProcessor(END, NO_TIMESTAMPS, 4)
    generator = np.random.default_rng(3)
    tokens: list[int] = []
    while len(tokens) < 60 and tokens[-1:] != [END]:
        logits = generator.normal(0, 2, (1, VOCABULARY)).astype(np.float32)
        logits[:, [21, 22, 23, END]] = -np.inf
        logits[:, max([BEGIN, *tokens]) + 4 :] = -np.inf  # time goes on in small steps
        allowed = allowed_of(processor, logits, [tokens])
        assert np.isfinite(allowed).any()
        tokens.append(int(allowed[0].argmax()))
        if tokens[-1] == VOCABULARY - 1:
            break
    assert BEGIN <= tokens[0] <= BEGIN + 4
    times = [token for token in tokens if token >= BEGIN]
    assert len(times) > 3
    assert times == sorted(times)
    assert all(begin < end for begin, end in zip(times[::2], times[1::2], strict=False))
