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
        ({}, {"max_new_tokens": 20}),
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
        ({"num_beams": 6, "length_penalty": 2, "early_stopping": True, "top_k": 7},
         {"num_beams": 6, "length_penalty": 2.0, "early_stopping": True, "top_k": 7}),
        ({"early_stopping": "never", "length_penalty": -0.6, "num_beams": 40},
         {"early_stopping": "never", "length_penalty": -0.6, "num_beams": 40}),
        # What is null has Hugging Face's default. Of samples, 50 tokens are the most.
        (dict.fromkeys(["num_beams", "length_penalty", "early_stopping", "do_sample", "top_k",
                        "temperature", "top_p", "min_p", "num_return_sequences"]), {}),
        ({"do_sample": True}, {"do_sample": True, "top_k": 50}),
        ({"do_sample": True, "temperature": 0.3, "top_k": 0, "top_p": 0.9, "min_p": 0.05},
         {"do_sample": True, "temperature": 0.3, "top_p": 0.9, "min_p": 0.05}),
        ({"do_sample": True, "temperature": 2, "top_k": 3, "top_p": 1, "min_p": 0},
         {"do_sample": True, "temperature": 2.0, "top_k": 3}),
        # Without effect on `generate`, and so of any value; but the caller may sample.
        ({"temperature": 0.0, "top_k": -1, "top_p": 7, "min_p": "low"}, {}),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "do_sample": False},
         {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1}),
        ({"typical_p": 0.5, "top_h": 0.3, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1}, {}),
        ({"do_sample": True, "typical_p": 1.0, "top_h": None, "epsilon_cutoff": 0.0,
          "eta_cutoff": 0.0, "penalty_alpha": 0.6, "renormalize_logits": True},
         {"do_sample": True, "top_k": 50, "renormalize_logits": True}),
        ({"num_beam_groups": 3, "diversity_penalty": 0.5, "renormalize_logits": True},
         {"renormalize_logits": True}),
        ({"num_beams": 2, "num_beam_groups": 1, "diversity_penalty": 0.5, "penalty_alpha": 0.6,
          "dola_layers": "low"}, {"num_beams": 2}),
        # The same tokens, sooner.
        ({"prompt_lookup_num_tokens": 3, "use_mtp": True, "token_healing": False}, {}),
        ({"guidance_scale": 1.0, "max_time": None}, {}),
    ],
)  # fmt: skip
def test_settings_are_rules(settings: dict[str, Any], rules: dict[str, Any]) -> None:
    expected = GenerationConfig(**{"max_new_tokens": 20} | rules)
    assert generation_config(settings, CONFIG, []) == expected


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
        ({"num_beams": 0}, "num_beams: expected at least 1, found 0"),
        ({"num_beams": 41}, "num_beams: expected at most 40, the vocabulary, found 41"),
        ({"num_beams": True}, "num_beams: expected an integer, found True"),
        ({"length_penalty": "long"}, "length_penalty: expected a number from -50 to 50, found"),
        ({"length_penalty": 51}, "length_penalty: expected a number from -50 to 50, found 51"),
        ({"early_stopping": 1}, 'early_stopping: expected one of true, false, "never", found 1'),
        ({"early_stopping": "always"}, "early_stopping: expected one of"),
        ({"do_sample": "yes"}, "do_sample: expected one of true, false, found 'yes'"),
        ({"do_sample": True, "temperature": 0.0}, "temperature: expected a number greater than 0"),
        ({"do_sample": True, "top_k": -1}, "top_k: expected at least 0, found -1"),
        ({"do_sample": True, "top_p": 1.5}, "top_p: expected a number from 0 to 1, found 1.5"),
        ({"do_sample": True, "min_p": -0.1}, "min_p: expected a number from 0 to 1, found -0.1"),
        ({"do_sample": True, "typical_p": 0.9}, "typical_p: this generation setting"),
        ({"do_sample": True, "top_h": 0.9}, "top_h: this generation setting"),
        ({"do_sample": True, "epsilon_cutoff": 0.01}, "epsilon_cutoff: this generation setting"),
        ({"do_sample": True, "eta_cutoff": 0.01}, "eta_cutoff: this generation setting"),
        ({"do_sample": True, "dola_layers": "low"}, "dola_layers: this generation setting"),
        ({"dola_layers": "low"}, "dola_layers: this generation setting"),
        ({"penalty_alpha": 0.6}, "penalty_alpha: this generation setting"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups: this generation setting"),
        ({"renormalize_logits": 1}, "renormalize_logits: expected one of true, false, found 1"),
        ({"token_healing": True}, "token_healing: this generation setting"),
        ({"is_assistant": True}, "is_assistant: this generation setting"),
        ({"num_return_sequences": 0}, "num_return_sequences: expected at least 1, found 0"),
    ],
)  # fmt: skip
def test_an_unsupported_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(DragomanError, match=problem):
        generation_config(settings, CONFIG, [])


def test_all_unsupported_settings_are_one_error() -> None:
    with pytest.raises(DragomanError) as caught:
        generation_config({"stop_strings": ["."], "max_length": 1.5}, CONFIG, [])
    assert "stop_strings" in str(caught.value)
    assert "max_length" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"num_beams": 3, "do_sample": True, "temperature": 0.5},
         "the generation settings ask for sampling within 3 beams, which is not supported"),
        ({"num_beams": 3, "num_return_sequences": 2}, "the generation settings ask for 2 outputs"),
    ],
)  # fmt: skip
def test_what_is_read_otherwise_is_noted(settings: dict[str, Any], note: str) -> None:
    notes: list[str] = []
    found = generation_config({"max_length": 9, **settings}, CONFIG, notes)
    assert len(notes) == 1
    assert notes[0].startswith(note)
    assert (found.num_beams, found.do_sample) == (3, False)


@pytest.mark.parametrize(("positions", "limit"), [(1024, 20), (21, 20), (20, 19), (1, 1)])
def test_without_a_stated_maximum_outputs_end_as_those_of_hugging_face(
    positions: int, limit: int
) -> None:
    notes: list[str] = []
    config = CONFIG.replace(max_target_positions=positions)
    assert generation_config({}, config, notes).max_new_tokens == limit
    assert notes == [
        "the generation settings have neither max_new_tokens nor max_length: outputs end after "
        f"{limit} tokens, as those of Hugging Face's generate, unless the caller says otherwise "
        "(--max-new-tokens)"
    ]


def test_a_forced_first_token_of_a_decoder_is_refused() -> None:
    """`generate` would force it only after a prompt of one token."""
    decoder = CONFIG.replace(source_vocab_size=0, encoder_layers=0, max_source_positions=0)
    with pytest.raises(
        DragomanError, match="forced_bos_token_id: expected none for a decoder-only"
    ):
        generation_config({"forced_bos_token_id": 5}, decoder, [])
