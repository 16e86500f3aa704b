"""Options are checked, then resolved for a model; an error names every option out of range."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, Unpack, get_type_hints

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.runtime import GenerationOptions, Manifest, Model
from dragoman.runtime.decoding.strategies import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_WINDOWS,
    GenerationLimits,
)
from dragoman.runtime.format.validation import manifest_from_json
from dragoman.settings.fields import Check, CommandOption, annotated
from dragoman.settings.generation import GenerationKeywords
from dragoman.settings.generation_settings import Part, setting_names


@pytest.fixture
def manifest(plain_manifest: dict[str, Any]) -> Manifest:
    """20 target positions, 15 tokens by default."""
    return manifest_from_json(json.dumps(plain_manifest | {"default_max_new_tokens": 15}), "p")


def message_of(manifest: Manifest, **options: Unpack[GenerationKeywords]) -> str:
    with pytest.raises(DragomanError) as caught:
        GenerationLimits.of(GenerationOptions(**options), manifest)
    return str(caught.value)


def test_the_default_limit_is_that_of_the_bundle(manifest: Manifest) -> None:
    assert GenerationLimits.of(GenerationOptions(), manifest).max_new_tokens == 15
    assert GenerationLimits.of(GenerationOptions(max_new_tokens=16), manifest).max_new_tokens == 16


def test_the_limit_is_at_most_the_positions_of_the_model(manifest: Manifest) -> None:
    assert GenerationLimits.of(GenerationOptions(max_new_tokens=20), manifest).new_tokens(1) == 20
    assert message_of(manifest, max_new_tokens=21) == (
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
    message = message_of(manifest, **options)
    assert message.startswith(f"{named}: expected ")
    assert "; " not in message


def test_all_options_out_of_range_are_reported_at_once(manifest: Manifest) -> None:
    message = message_of(
        manifest,
        max_new_tokens=0,
        min_new_tokens=-1,
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


def test_integers_of_numpy_are_integers(manifest: Manifest) -> None:
    integers: dict[str, Any] = {"max_new_tokens": np.int64(5), "max_batch_size": np.int32(2)}
    assert GenerationLimits.of(GenerationOptions(**integers), manifest).new_tokens(3) == 5


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
def test_the_lower_of_the_two_limits_holds_and_is_rounded_up(
    manifest: Manifest, relative: float, source_length: int, limit: int
) -> None:
    options = GenerationOptions(max_new_tokens_per_source_token=relative)
    assert GenerationLimits.of(options, manifest).new_tokens(source_length) == limit


def test_flags_of_numpy_are_flags() -> None:
    assert GenerationOptions(early_stopping=np.True_).early_stopping is True  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", [np.array(5), np.array([[5, 6]])])
def test_a_prefix_is_one_sequence(prefix: Any) -> None:
    with pytest.raises(DragomanError, match="prefix: expected a text or a list of token ids"):
        GenerationOptions(prefix=prefix)


def test_the_number_of_samples_is_limited(text_model: Model) -> None:
    with pytest.raises(DragomanError, match="num_return_sequences: expected at most 10000 samples"):
        text_model.generate(["cab"], do_sample=True, num_return_sequences=10**9)


def test_the_keywords_of_generate_are_the_fields_of_the_options() -> None:
    """`GenerationKeywords` repeats the fields so that type checkers and editors know them."""
    assert get_type_hints(GenerationKeywords) == get_type_hints(GenerationOptions)
    assert GenerationKeywords.__required_keys__ == frozenset()


def test_every_option_has_a_check_and_every_setting_of_a_strategy_an_option() -> None:
    """The command line, the server and the manifest are made from these declarations."""
    options = {field.name for field in dataclasses.fields(GenerationOptions)}
    assert annotated(GenerationOptions, Check).keys() == options
    thresholds = {name for name in options if name.endswith("_threshold")}
    without = options - annotated(GenerationOptions, CommandOption).keys()
    assert without == {"max_batch_tokens", *thresholds} and len(thresholds) == 3
    for part in (Part.STRATEGY, Part.BEAMS, Part.SAMPLING):
        published = setting_names(part)
        assert set(published) <= options
        assert [n for n in setting_names(part, of=GenerationOptions) if n != "seed"] == published


def test_an_unknown_option_is_one_error_that_lists_the_known_ones(text_model: Model) -> None:
    unknown: dict[str, Any] = {"beam_size": 4, "max_new_token": 3, "max_new_tokens": 2}
    names = ", ".join(field.name for field in dataclasses.fields(GenerationOptions))
    expected = f"unknown option beam_size, max_new_token: expected some of {names}"
    calls: tuple[Callable[[], object], ...] = (
        lambda: GenerationOptions().replace(**unknown),
        lambda: text_model.generate(["abc"], **unknown),
        lambda: text_model.stream("abc", **unknown),
    )
    for call in calls:
        with pytest.raises(DragomanError) as caught:
            call()
        assert str(caught.value) == expected


def test_keywords_change_the_options_given(text_model: Model) -> None:
    options = GenerationOptions(max_new_tokens=2, max_batch_size=1)
    both = text_model.generate(["abc", "dragoman"], options, max_new_tokens=3)
    assert both == text_model.generate(["abc", "dragoman"], max_new_tokens=3, max_batch_size=1)
    assert options == GenerationOptions(max_new_tokens=2, max_batch_size=1)
    with pytest.raises(DragomanError, match="min_new_tokens: expected at most max_new_tokens 2"):
        text_model.generate(["abc"], options, min_new_tokens=3)


def test_a_minimum_above_the_limit_is_an_error_with_and_without_a_model(
    manifest: Manifest,
) -> None:
    with pytest.raises(DragomanError, match="expected at most max_new_tokens 5, found 6"):
        GenerationOptions(max_new_tokens=5, min_new_tokens=6)
    options = GenerationOptions(min_new_tokens=16)
    with pytest.raises(DragomanError, match="expected at most max_new_tokens 15, found 16"):
        GenerationLimits.of(options, manifest)


def test_batches_are_limited_by_default_in_tokens_and_for_speech_in_windows(
    manifest: Manifest,
) -> None:
    assert (
        GenerationLimits.of(GenerationOptions(), manifest).max_batch_tokens == DEFAULT_BATCH_TOKENS
    )
    assert (
        GenerationLimits.of(GenerationOptions(max_batch_tokens=7), manifest).max_batch_tokens == 7
    )
    audio = dataclasses.replace(
        manifest, model=dataclasses.replace(manifest.model, source_vocab_size=None)
    )
    windows = DEFAULT_WINDOWS * manifest.model.max_source_positions
    assert GenerationLimits.of(GenerationOptions(), audio).max_batch_tokens == windows


def test_a_prompt_takes_positions(manifest: Manifest) -> None:
    prompted = dataclasses.replace(
        manifest, generation=dataclasses.replace(manifest.generation, prompt=(3, 4))
    )
    assert message_of(prompted, max_new_tokens=19) == (
        "max_new_tokens: expected at most 18, the positions of this model less the prompt, found 19"
    )
