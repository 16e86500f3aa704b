"""ModelConfig: which values are valid, and how problems are reported."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.reference_model import ConfigError, ModelConfig

MakeConfig = Callable[..., ModelConfig]

OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    (
        {"source_vocab_size": -1, "pad_token_id": 0},
        "source_vocab_size must be at least 1, found -1",
    ),
    ({"target_vocab_size": -3}, "target_vocab_size must be at least 1, found -3"),
    ({"d_embedding": 8}, "d_embedding 8 and encoder_order None are for encoder-only models"),
    ({"encoder_order": (0, 0)}, "encoder_order (0, 0) are for encoder-only models"),
    ({"encoder_order": ()}, "encoder_order must be a list of int, found ()"),
    ({"encoder_order": (0, 2)}, "encoder_order must have each number below encoder_layers"),
    ({"encoder_order": (-1, 0)}, "encoder_order must have each number below encoder_layers"),
    (
        {"encoder_order": (0, 1), "encoder_layers": 2**62},
        "encoder_order must have each number below encoder_layers",
    ),
    ({"d_embedding": 0}, "d_embedding must be at least 1 or null, found 0"),
    ({"encoder_layers": 0}, "encoder_layers must be at least 1, found 0"),
    ({"decoder_layers": -1}, "decoder_layers must be at least 1, found -1"),
    ({"d_model": 0}, "d_model must be at least 1, found 0"),
    ({"num_heads": 0}, "num_heads must be at least 1, found 0"),
    ({"d_ff": 0}, "d_ff must be at least 1, found 0"),
    ({"max_source_positions": 0}, "max_source_positions must be at least 1, found 0"),
    ({"max_target_positions": 0}, "max_target_positions must be at least 1, found 0"),
    ({"d_head": 0}, "d_head must be at least 1 or null, found 0"),
    ({"num_heads": 5}, "d_model 24 is not a multiple of num_heads 5"),
    ({"d_model": 27}, "sinusoidal positions need an even d_model, found 27"),
    ({"dropout": 1.0}, "dropout must be in [0, 1), found 1.0"),
    ({"dropout": -0.1}, "dropout must be in [0, 1), found -0.1"),
    ({"dropout": math.nan}, "dropout must be in [0, 1), found nan"),
    ({"norm_epsilon": 0.0}, "norm_epsilon must be positive"),
    ({"norm_epsilon": math.nan}, "norm_epsilon must be positive"),
    ({"tie_source_target": True}, "found 17 (source) and 19 (target)"),
    ({"start_token_id": 19}, "start_token_id must be in the target vocabulary [0, 19), found 19"),
    ({"end_token_id": -1}, "end_token_id must be in the target vocabulary [0, 19), found -1"),
    (
        {"pad_token_id": 17},
        "must be in both vocabularies, of 17 and 19 tokens, found 17",
    ),
]

WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"d_model": "24"}, "d_model must be an integer, found '24'"),
    ({"d_model": 24.0}, "d_model must be an integer, found 24.0"),
    ({"d_model": True}, "d_model must be an integer, found True"),
    ({"d_model": None}, "d_model must be an integer, found None"),
    ({"d_ff": 2**63}, f"d_ff must be an integer of 64 bits, found {2**63}"),
    ({"d_head": -(2**70)}, f"d_head must be an integer of 64 bits, found -{2**70}"),
    ({"d_head": 8.0}, "d_head must be an integer, found 8.0"),
    ({"dropout": "0.1"}, "dropout must be a number, found '0.1'"),
    ({"dropout": False}, "dropout must be a number, found False"),
    ({"norm_gain": 1}, "norm_gain must be true or false, found 1"),
    (
        {"activation": "sigmoid"},
        "activation must be one of relu, gelu, gelu_tanh, quick_gelu, silu, tanh, found 'sigmoid'",
    ),
    ({"activation": ["relu"]}, "activation must be one of"),
    ({"norm_order": "Pre"}, "norm_order must be one of post, pre, found 'Pre'"),
    ({"positions": None}, "positions must be one of sinusoidal, learned, relative, learned_and"),
]


@pytest.mark.parametrize(("changes", "message"), OUT_OF_RANGE + WRONG_TYPES)
def test_one_invalid_field_is_reported(
    make_config: MakeConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**changes)
    assert any(message in problem for problem in caught.value.problems)
    assert message in str(caught.value)


def test_config_errors_are_shown_to_users() -> None:
    assert issubclass(ConfigError, DragomanError)


def test_every_field_out_of_range_is_reported_at_once(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(
            encoder_layers=0,
            d_model=27,
            num_heads=5,
            d_ff=-2,
            dropout=2.0,
            norm_epsilon=-1.0,
            tie_source_target=True,
            start_token_id=99,
            end_token_id=-1,
            pad_token_id=18,
        )
    problems = caught.value.problems
    assert len(problems) == 10
    for name in (
        "encoder_layers",
        "d_ff",
        "num_heads",
        "even d_model",
        "dropout",
        "norm_epsilon",
        "tie_source_target",
        "start_token_id",
        "end_token_id",
        "pad_token_id",
    ):
        assert any(name in problem for problem in problems), name


def test_every_field_of_a_wrong_type_is_reported_at_once(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(d_model="x", dropout=None, norm_bias="yes", activation=3)
    assert sorted(problem.split()[0] for problem in caught.value.problems) == [
        "activation",
        "d_model",
        "dropout",
        "norm_bias",
    ]


def test_wrong_types_do_not_hide_values_out_of_range(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(activation="sigmoid", d_ff=-1, pad_token_id=99)
    assert len(caught.value.problems) == 3


def test_an_infinite_epsilon_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="norm_epsilon"):
        make_config(norm_epsilon=math.inf)


def test_an_epsilon_beyond_the_range_of_floats_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="norm_epsilon"):
        make_config(norm_epsilon=10**400)


@pytest.mark.parametrize(
    "changes",
    [
        {"dropout": 0},
        {"d_model": 27, "positions": "learned"},
        {"num_heads": 5, "d_head": 7},
        {"start_token_id": 0, "end_token_id": 0},
        {"source_vocab_size": 1, "pad_token_id": 0},
        {"source_vocab_size": 19, "tie_source_target": True},
    ],
)
def test_extreme_valid_values(make_config: MakeConfig, changes: dict[str, Any]) -> None:
    config = make_config(**changes)
    assert {name: getattr(config, name) for name in changes} == changes


def test_head_size_is_d_model_over_heads_unless_given(make_config: MakeConfig) -> None:
    assert make_config().head_size == 8
    assert make_config(d_head=5).head_size == 5


def test_replace_validates_again_and_keeps_the_original(make_config: MakeConfig) -> None:
    config = make_config()
    assert config.replace(d_ff=7).d_ff == 7
    with pytest.raises(ConfigError, match="d_ff must be at least 1"):
        config.replace(d_ff=0)
    assert config == make_config()
