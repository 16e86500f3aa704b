"""ModelConfig as plain data and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.reference_model import ConfigError, ModelConfig

MakeConfig = Callable[..., ModelConfig]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"d_head": 5, "norm_epsilon": 1e-6, "dropout": 0.25},
        {"attention_dropout": 0.1},
        {"norm_order": "pre", "activation": "gelu_tanh", "positions": "learned"},
        {"norm_gain": False, "query_bias": False, "logits_bias": True, "tie_target_output": False},
    ],
)
def test_json_round_trip(make_config: MakeConfig, changes: dict[str, object]) -> None:
    config = make_config(**changes)
    assert ModelConfig.from_json(json.dumps(config.to_dict())) == config


def test_plain_data_has_every_field(make_config: MakeConfig) -> None:
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    more: dict[str, Any] = {"attention_dropout": 0.1, "feed_forward_dropout": 0.2}
    more |= {"decoder_kind": "ssru", "additive_scores": True}
    assert make_config(**more).to_dict().keys() == names
    assert make_config().to_dict().keys() == names - more.keys(), "as in files without them"


def test_omitted_fields_have_the_paper_s_values() -> None:
    config = ModelConfig.from_json('{"source_vocab_size": 9, "target_vocab_size": 11}')
    assert config == ModelConfig(source_vocab_size=9, target_vocab_size=11)
    assert (config.d_model, config.d_ff, config.num_heads, config.dropout) == (512, 2048, 8, 0.1)


def test_unknown_and_missing_fields_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict({"d_modle": 24, "heads": 3})
    assert caught.value.problems == [
        "unknown field 'd_modle'",
        "unknown field 'heads'",
        "missing field 'source_vocab_size'",
        "missing field 'target_vocab_size'",
    ]


def test_a_missing_field_causes_no_other_problem() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict({"source_vocab_size": 9, "tie_source_target": True})
    assert caught.value.problems == ["missing field 'target_vocab_size'"]


def test_wrong_types_in_json_are_reported_at_once() -> None:
    text = '{"source_vocab_size": "9", "target_vocab_size": null, "dropout": [0.1]}'
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_json(text)
    assert caught.value.problems == [
        "source_vocab_size must be an integer, found '9'",
        "target_vocab_size must be an integer, found None",
        "dropout must be a number, found [0.1]",
    ]


def test_unknown_fields_do_not_hide_bad_values() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(
            {"source_vocab_size": 9, "target_vocab_size": 9, "heads": 3, "d_ff": 0}
        )
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("text", ["", "{", "{'d_model': 24}", '{"a": 1,}', "\ufeff{}", "nul"])
def test_invalid_json_is_reported(text: str) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        ModelConfig.from_json(text)


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "list"), ("3", "int"), ("null", "NoneType"), ('"x"', "str")]
)
def test_json_of_another_kind_is_reported(text: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"expected a JSON object, found {kind}"):
        ModelConfig.from_json(text)


@pytest.mark.parametrize("text", ['{"d_model": ' + "1" * 5000 + "}", "[" * 200_000])
def test_json_that_python_cannot_parse_is_reported(text: str) -> None:
    with pytest.raises(ConfigError):
        ModelConfig.from_json(text)
