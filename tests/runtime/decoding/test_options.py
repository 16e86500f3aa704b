"""Options are checked against the model, and every one out of range is told."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions, Manifest
from dragoman.runtime.format.validation import manifest_from_json


@pytest.fixture
def manifest(plain_manifest: dict[str, Any]) -> Manifest:
    """20 target positions, 15 tokens by default."""
    return manifest_from_json(json.dumps(plain_manifest | {"default_max_new_tokens": 15}), "p")


def message_of(manifest: Manifest, max_new_tokens: int | None, **options: float) -> str:
    with pytest.raises(DragomanError) as caught:
        GenerationOptions.for_model(manifest, max_new_tokens, **options)
    return str(caught.value)


def test_the_default_is_that_of_the_bundle(manifest: Manifest) -> None:
    assert GenerationOptions.for_model(manifest).max_new_tokens == 15
    assert GenerationOptions.for_model(manifest, 16).max_new_tokens == 16


def test_all_positions_may_be_used_and_no_more(manifest: Manifest) -> None:
    assert GenerationOptions.for_model(manifest, 20).limit(1) == 20
    assert message_of(manifest, 21) == (
        "max_new_tokens: expected at most 20, the positions of this model, found 21"
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"min_new_tokens": 16}, "min_new_tokens"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 2.5}, "max_batch_size"),
        ({"max_batch_tokens": 0}, "max_batch_tokens"),
        ({"max_batch_tokens": math.nan}, "max_batch_tokens"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_new_tokens_per_source_token": 0.0}, "max_new_tokens_per_source_token"),
        ({"max_new_tokens_per_source_token": -1.0}, "max_new_tokens_per_source_token"),
        ({"max_new_tokens_per_source_token": math.nan}, "max_new_tokens_per_source_token"),
    ],
)
def test_an_option_out_of_range_is_named(
    manifest: Manifest, options: dict[str, Any], named: str
) -> None:
    message = message_of(manifest, options.pop("max_new_tokens", None), **options)
    assert message.startswith(f"{named}: expected ")
    assert "; " not in message


def test_all_options_out_of_range_are_told_at_once(manifest: Manifest) -> None:
    message = message_of(
        manifest,
        21,
        min_new_tokens=22,
        max_batch_size=0,
        max_batch_tokens=-5,
        max_new_tokens_per_source_token=0,
    )
    problems = message.split("; ")
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "max_batch_size",
        "max_batch_tokens",
        "max_new_tokens",
        "max_new_tokens_per_source_token",
        "min_new_tokens",
    ]
    assert "found -5" in message


def test_an_unknown_option_is_an_error(manifest: Manifest) -> None:
    with pytest.raises(TypeError, match="beam_size"):
        GenerationOptions.for_model(manifest, beam_size=4)


def test_integers_of_numpy_are_integers(manifest: Manifest) -> None:
    options = GenerationOptions.for_model(manifest, np.int64(5), max_batch_size=np.int32(2))  # type: ignore[arg-type]
    assert options.limit(3) == 5


@pytest.mark.parametrize(
    ("relative", "source_length", "limit"),
    [
        (math.inf, 1, 15),
        (math.inf, 10**9, 15),
        (2.0, 1, 2),
        (2.0, 7, 14),
        (2.0, 8, 15),
        (1.5, 3, 5),
        (0.25, 4, 1),
        (0.25, 5, 2),
        (1e-9, 1, 1),
        (1e300, 10**9, 15),
    ],
)
def test_the_lower_of_both_limits_holds_rounded_up(
    manifest: Manifest, relative: float, source_length: int, limit: int
) -> None:
    options = GenerationOptions.for_model(manifest, max_new_tokens_per_source_token=relative)
    assert options.limit(source_length) == limit
