"""What can be wrong with a `ModelConfig`: types, then ranges."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from .config import ModelConfig

SIDES = {
    "encoder": ("source_vocab_size", "encoder_layers", "max_source_positions"),
    "decoder": ("target_vocab_size", "decoder_layers", "max_target_positions"),
}
"""The sizes of each side, which are 0 where the model does not have it."""


def out_of_range(config: ModelConfig, unusable: frozenset[str]) -> list[str]:
    """Out-of-range values; checks that depend on a field of the wrong type are skipped."""
    checks = _Checks(config, unusable)
    for side, names in SIDES.items():
        _check_side(checks, side, names)
    for name in ("d_model", "num_heads", "d_ff", "feature_size"):
        checks.add(
            [name],
            lambda value: value is not None and value < 1,
            f"{name} must be at least 1, found {{}}",
        )
    for name in ("d_head", "d_value"):
        checks.add(
            [name],
            lambda size: size is not None and size < 1,
            f"{name} must be at least 1 or null, found {{}}",
        )
    checks.add(
        ["d_model", "num_heads", "d_head"],
        lambda width, heads, size: size is None and heads > 0 and width % heads,
        "d_model {} is not a multiple of num_heads {}: choose another number or set d_head",
    )
    checks.add(
        ["score_scale"],
        lambda scale: scale is not None and not 0 < scale < math.inf,
        "score_scale must be positive and finite or null, found {}",
    )
    checks.add(
        ["d_model", "positions"],
        lambda width, kind: kind == "sinusoidal" and width % 2,
        "sinusoidal positions need an even d_model, found {}",
    )
    checks.add(["dropout"], lambda p: not 0 <= p < 1, "dropout must be in [0, 1), found {}")
    checks.add(
        ["norm_epsilon"],
        lambda epsilon: not 0 < epsilon < math.inf,
        "norm_epsilon must be positive and finite, found {}",
    )
    checks.add(
        ["source_vocab_size", "feature_size"],
        lambda vocabulary, features: (vocabulary is None) == (features is None),
        "expected exactly one of source_vocab_size (tokens) and feature_size (speech), found "
        "{} and {}",
    )
    checks.add(
        ["feature_size", "positions"],
        lambda features, kind: features is not None and kind == "relative",
        "a speech model (feature_size {}) needs sinusoidal or learned positions, found {}",
    )
    checks.add(
        ["norm", "norm_bias"],
        lambda kind, bias: kind == "rms" and bias,
        "norm {} has no bias: expected norm_bias false, found {}",
    )
    checks.add(
        ["positions", "relative_buckets", "relative_max_distance"],
        lambda kind, buckets, distance: (
            kind == "relative" and (buckets < 4 or distance <= buckets // 2)
        ),
        "{} positions need relative_buckets of at least 4 and a relative_max_distance greater "
        "than half of relative_buckets, found {} and {}",
    )
    _check_head(checks)
    _check_tokens(checks)
    return checks.problems


def wrong_types(settings: object) -> dict[str, str]:
    """Problems of a dataclass by field name."""
    problems = {}
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        optional = type(None) in get_args(hint)
        kind = next(iter(get_args(hint))) if optional else hint
        if kind is float:
            good = isinstance(value, int | float) and not isinstance(value, bool)
            good = good and not abs(value) > sys.float_info.max
            expected = "a number"
        elif kind is bool:
            good, expected = isinstance(value, bool), "true or false"
        elif kind is int:
            good = isinstance(value, int) and not isinstance(value, bool)
            good = good and -(2**63) <= value < 2**63
            expected = "an integer" if type(value) is not int else "an integer of 64 bits"
        elif get_origin(kind) is Literal:
            good = value in get_args(kind)
            expected = "one of " + ", ".join(get_args(kind))
        elif get_origin(kind) is tuple:
            good = isinstance(value, tuple) and len(value) == len(get_args(kind))
            good = good and all(isinstance(x, int | float) for x in value)
            expected = f"{len(get_args(kind))} numbers"
        else:
            good, expected = isinstance(value, kind), f"a {kind.__name__}"
        if not (good or (optional and value is None)):
            problems[name] = f"{name} must be {expected}, found {value!r}"
    return problems


class _Checks:
    """Collects problems; checks that read a field of the wrong type are skipped."""

    def __init__(self, config: ModelConfig, unusable: frozenset[str]) -> None:
        self.config = config
        self.unusable = unusable
        self.problems: list[str] = []

    def add(self, fields: list[str], wrong: Callable[..., object], problem: str) -> None:
        """Record the problem, formatted with the fields' values, if `wrong` is true of them."""
        if self.unusable.isdisjoint(fields):
            values = [getattr(self.config, field) for field in fields]
            if wrong(*values):
                self.problems.append(problem.format(*values))


def _check_side(checks: _Checks, side: str, names: tuple[str, ...]) -> None:
    """Sizes of a side are all at least 1 or, where the model does not have it, all 0."""
    vocabulary = names[0]
    for name in names:
        checks.add(
            [vocabulary, name],
            lambda vocabulary, size: vocabulary != 0 and size is not None and size < 1,
            f"{name} must be at least 1, found {{1}}",
        )
        checks.add(
            [vocabulary, name],
            lambda vocabulary, size: vocabulary == 0 and size != 0,
            f"{name} must be 0 in a model without {side} ({vocabulary} {{}}), found {{}}",
        )


def _check_head(checks: _Checks) -> None:
    checks.add(
        ["source_vocab_size", "target_vocab_size"],
        lambda source, target: source == target == 0,
        "expected an encoder or a decoder, found source_vocab_size {} and target_vocab_size {}",
    )
    checks.add(
        ["target_vocab_size", "head"],
        lambda target, head: (target == 0) != (head is not None),
        "a model has either a decoder or a head, found target_vocab_size {} and head {}",
    )
    checks.add(
        ["head", "feature_size"],
        lambda head, features: head is not None and features is not None,
        "a head is for sources of tokens, found {} and feature_size {}",
    )
    checks.add(
        ["token_types", "source_vocab_size"],
        lambda types, source: types < 0 or (types > 0 and not source),
        "token_types must be at least 0, and 0 where the source is not tokens, found {}",
    )
    checks.add(
        ["head", "d_model"],
        lambda head, width: (
            head is not None
            and head.task not in ("embedding", "token-classification", "question-answering")
            and head.dense_size not in (0, width)
        ),
        "the dense layer of this head has d_model outputs: expected {1}, found {0.dense_size}",
    )
    checks.add(
        ["head", "source_vocab_size"],
        lambda head, size: head is not None and size is not None and head.mask_token_id >= size,
        "head.mask_token_id must be in the vocabulary of {1} tokens, found {0.mask_token_id}",
    )


def _check_tokens(checks: _Checks) -> None:
    checks.add(
        ["source_vocab_size", "target_vocab_size", "tie_source_target"],
        lambda source, target, tie: tie and 0 not in (source, target) and source != target,
        "tie_source_target needs equal vocabularies, found {} (source) and {} (target)",
    )
    for name in ("start_token_id", "end_token_id"):
        checks.add(
            ["target_vocab_size", name],
            lambda size, token: size != 0 and not 0 <= token < size,
            f"{name} must be in the target vocabulary [0, {{}}), found {{}}",
        )
    checks.add(
        ["source_vocab_size", "target_vocab_size", "pad_token_id"],
        lambda source, target, token: not 0 <= token < min(source or target, target or source),
        "pad_token_id must be in both vocabularies, of {} and {} tokens, found {}",
    )
