"""Generation settings become the rules that they stand for in `transformers`, or are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import DragomanError
from dragoman.export.families.generation import generation_config
from dragoman.reference_model import GenerationConfig, ModelConfig

CONFIG = ModelConfig(source_vocab_size=50, target_vocab_size=40, end_token_id=3)


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({}, {}),
        # Lengths count the start token.
        ({"max_length": 20, "min_length": 5}, {"max_new_tokens": 19, "min_new_tokens": 4}),
        ({"max_length": 1, "min_length": 0}, {}),
        ({"max_length": 20, "max_new_tokens": 7, "min_new_tokens": 2, "min_length": 2},
         {"max_new_tokens": 7, "min_new_tokens": 2}),
        ({"forced_bos_token_id": 5, "forced_eos_token_id": [3]},
         {"forced_first_token_id": 5, "forced_last_token_id": 3}),
        ({"suppress_tokens": [9, 7, 9], "begin_suppress_tokens": [4, 3]},
         {"suppressed_token_ids": (7, 9), "first_suppressed_token_ids": (3, 4)}),
        # A bad word that is the end token has no effect; a suppressed end token has.
        ({"bad_words_ids": [[39], [3]]}, {"suppressed_token_ids": (39,)}),
        ({"suppress_tokens": [3]}, {"suppressed_token_ids": (3,)}),
        ({"no_repeat_ngram_size": 3, "repetition_penalty": 2},
         {"no_repeat_ngram_size": 3, "repetition_penalty": 2.0}),
        # Settings of sampling and of beam search are ignored.
        ({"num_beams": 6, "do_sample": True, "temperature": 0.3, "length_penalty": 2.0,
          "early_stopping": True, "guidance_scale": 1, "encoder_no_repeat_ngram_size": 0}, {}),
    ],
)  # fmt: skip
def test_settings_are_rules(settings: dict[str, Any], rules: dict[str, Any]) -> None:
    assert generation_config(settings, CONFIG) == GenerationConfig(**rules)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder_no_repeat_ngram_size": 3}, "encoder_no_repeat_ngram_size: this generation"),
        ({"sequence_bias": [[[1], 2.0]]}, "sequence_bias"),
        ({"guidance_scale": 3.0}, "guidance_scale"),
        ({"bad_words_ids": [[4, 5]]}, "bad_words_ids: expected words of one token"),
        ({"forced_eos_token_id": [3, 4]}, "forced_eos_token_id: expected one token"),
        ({"suppress_tokens": [40]}, r"suppress_tokens: expected token ids in \[0, 40\), found 40"),
        ({"suppress_tokens": ["a"]}, "suppress_tokens: expected token ids, found"),
        ({"max_length": "long"}, "max_length: expected an integer, found 'long'"),
    ],
)
def test_an_unsupported_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(DragomanError, match=problem):
        generation_config(settings, CONFIG)


def test_all_unsupported_settings_are_one_error() -> None:
    with pytest.raises(DragomanError) as caught:
        generation_config({"stop_strings": ["."], "max_length": 1.5}, CONFIG)
    assert "stop_strings" in str(caught.value)
    assert "max_length" in str(caught.value)
