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
        ({"max_length": 20, "min_length": 5}, {"max_new_tokens": 19, "min_length": 5}),
        ({"max_length": 2, "min_length": 0}, {"max_new_tokens": 1}),
        ({"max_length": 1, "max_new_tokens": 3}, {"max_new_tokens": 3}),
        # The number of new tokens takes precedence, 0 too.
        ({"max_length": 20, "max_new_tokens": 7, "min_new_tokens": 2, "min_length": 9},
         {"max_new_tokens": 7, "min_new_tokens": 2}),
        ({"min_new_tokens": 0, "min_length": 9}, {}),
        ({"forced_bos_token_id": 5, "forced_eos_token_id": [3]},
         {"forced_first_token_id": 5, "forced_last_token_id": 3}),
        # Of several forced tokens, the argmax is the lowest.
        ({"forced_eos_token_id": [7, 4, 9], "suppress_tokens": [4]},
         {"forced_last_token_id": 7, "suppressed_token_ids": (4,)}),
        ({"eos_token_id": 3}, {}),
        ({"eos_token_id": [3]}, {}),
        ({"eos_token_id": [3, 9, 3]}, {"end_token_ids": (3, 9)}),
        ({"eos_token_id": []}, {"end_token_ids": ()}),
        # Suppressing a token that there is not changes nothing.
        ({"suppress_tokens": [-1, 7, 40], "begin_suppress_tokens": [-1, 99]},
         {"suppressed_token_ids": (7,)}),
        ({"bad_words_ids": [[39], [4, 5], [3], [3, 3]], "eos_token_id": [3, 39]},
         {"bad_words": ((4, 5), (3, 3)), "end_token_ids": (3, 39)}),
        ({"encoder_no_repeat_ngram_size": 3}, {"encoder_no_repeat_ngram_size": 3}),
        # Empty values switch a setting off.
        ({"stop_strings": [], "sequence_bias": [], "constraints": [], "force_words_ids": [],
          "exponential_decay_length_penalty": [], "watermarking_config": {}, "suppress_tokens": {},
          "bad_words_ids": {}, "forced_eos_token_id": [], "begin_suppress_tokens": ""}, {}),
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
        ({"guidance_scale": 1.0, "max_time": None}, {}),
    ],
)  # fmt: skip
def test_settings_are_rules(settings: dict[str, Any], rules: dict[str, Any]) -> None:
    assert generation_config(settings, CONFIG) == GenerationConfig(**rules)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty: this generation"),
        ({"sequence_bias": [[[1], 2.0]]}, "sequence_bias"),
        ({"guidance_scale": 3.0}, "guidance_scale"),
        # Only 1 switches it off: 0 computes the unconditional logits alone.
        ({"guidance_scale": 0}, "guidance_scale: this generation setting is not supported"),
        ({"max_time": 2.5}, "max_time: this generation setting is not supported, found 2.5"),
        ({"bad_words_ids": [[4, 40]]},
         r"bad_words_ids: expected token ids in \[0, 40\), found 40"),
        ({"bad_words_ids": [[]]}, "bad_words_ids: expected lists of token ids"),
        ({"forced_eos_token_id": [3, 40]},
         r"forced_eos_token_id: expected token ids in \[0, 40\), found 40"),
        ({"forced_bos_token_id": 3, "suppress_tokens": [3, 4]},
         r"forced_bos_token_id: expected a token that suppress_tokens leaves, found \[3\]"),
        ({"forced_eos_token_id": [3, 4], "suppress_tokens": [3, 4, 5]},
         r"forced_eos_token_id: expected a token that suppress_tokens leaves, found \[3, 4\]"),
        ({"eos_token_id": [3, 40]}, r"eos_token_id: expected token ids in \[0, 40\), found 40"),
        ({"suppress_tokens": ["a"]}, "suppress_tokens: expected token ids, found"),
        ({"max_length": "long"}, "max_length: expected an integer, found 'long'"),
        ({"max_length": 1}, "max_length: expected at least 2, found 1"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected at least 1, found 0"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty: expected a number greater than 0"),
        ({"repetition_penalty": 1e308}, "repetition_penalty: expected a number greater than 0"),
    ],
)  # fmt: skip
def test_an_unsupported_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(DragomanError, match=problem):
        generation_config(settings, CONFIG)


def test_all_unsupported_settings_are_one_error() -> None:
    with pytest.raises(DragomanError) as caught:
        generation_config({"stop_strings": ["."], "max_length": 1.5}, CONFIG)
    assert "stop_strings" in str(caught.value)
    assert "max_length" in str(caught.value)
