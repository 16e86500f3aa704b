"""Whisper's trained weights, read from CTranslate2's files, compute what Hugging Face's model
computes with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.benchmarks.models.real_models import whisper
from dragoman.export.families.ctranslate2 import load_ctranslate2
from dragoman.export.families.ctranslate2.whisper import whisper_tokens

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("size", ["tiny.en", "base"])
def test_encoder_output_and_logits(
    size: str, whisper_at_hugging_face: Callable[[Path], Any]
) -> None:
    directory = whisper(size)
    model = load_ctranslate2(directory)
    tokens = whisper_tokens(directory)
    assert not model.config.key_bias
    assert model.config.tie_target_output
    assert model.generation.first_suppressed_token_ids == (220, tokens.end)
    assert {1, 2, 7, tokens.start} - {*model.generation.suppressed_token_ids} <= {tokens.start}
    languages = {"tiny.en": 0, "base": 99}
    assert len(tokens.languages) == languages[size]
    assert tokens.first_timestamp == model.config.target_vocab_size - 1501
    assert tokens.no_timestamps == tokens.first_timestamp - 1
    theirs = whisper_at_hugging_face(directory)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 80, 3000, generator=generator).clamp(-1, 1.5)
    target = torch.randint(0, tokens.end, (1, 7), generator=generator)
    target[0, 0] = tokens.start
    mask = torch.ones(1, model.config.max_source_positions, dtype=torch.bool)
    with torch.inference_mode():
        expected = theirs(features, decoder_input_ids=target)
        encoded = model.encoder(features, None)
        logits = model(features, mask, target)
    torch.testing.assert_close(encoded, expected.encoder_last_hidden_state, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=1e-4)
