"""Sources that are too long are cut on request, and otherwise rejected."""

from __future__ import annotations

import dataclasses

import pytest

from dragoman.runtime import GenerationOptions, Model

ADVICE = "truncate=True (--truncate) cuts it"


def test_a_text_is_cut_before_its_end_token(text_model: Model) -> None:
    """40 positions, of which the end token of the source takes one."""
    letters = "abcdefghijklmnopqrstuvwxyz" * 3
    (expected,) = text_model.generate([letters[:39]])
    long, short = text_model.generate([letters, "abc"], truncate=True)
    assert (long.tokens, long.score, long.truncated) == (expected.tokens, expected.score, True)
    assert short == text_model.generate(["abc"])[0] and not short.truncated
    assert list(text_model.stream(letters, truncate=True)) == list(text_model.stream(letters[:39]))
    beams = text_model.generate([letters, letters[:39]], truncate=True, num_beams=3)
    assert [result.truncated for result in beams] == [True, False]
    assert beams[0].hypotheses == beams[1].hypotheses


def test_only_a_beginning_of_a_very_long_text_is_read(text_model: Model) -> None:
    """What follows may even be unknown symbols."""
    (expected,) = text_model.generate(["a" * 39])
    for text in ("a" * 1_000_000, "a" * 20_000 + "1" * 20_000):
        (found,) = text_model.generate([text], truncate=True)
        assert (found.tokens, found.truncated) == (expected.tokens, True)


@pytest.mark.parametrize("last", [0, 1])
def test_token_ids_keep_the_special_tokens_at_their_end(text_model: Model, last: int) -> None:
    """Those that the tokenizer adds."""
    (expected,) = text_model.generate([[7] * (40 - last) + [2] * last])
    (found,) = text_model.generate([[7] * 50 + [2] * last], truncate=True)
    assert (found.tokens, found.score, found.truncated) == (expected.tokens, expected.score, True)


def test_token_ids_without_a_tokenizer_keep_an_end_token(ids_model: Model) -> None:
    """33 positions. The end token of the sources is taken to be that of the targets."""
    model = dataclasses.replace(ids_model.manifest.model, end_token_id=2)
    manifest = dataclasses.replace(ids_model.manifest, model=model)
    other = Model(dataclasses.replace(ids_model.bundle, manifest=manifest), ids_model.backend)
    results = other.generate([[7] * 50 + [2], [7] * 32 + [2], [7] * 50, [7] * 33], truncate=True)
    assert [result.truncated for result in results] == [True, False, True, False]
    assert [result.tokens for result in results[::2]] == [r.tokens for r in results[1::2]]


def test_other_errors_stay(text_model: Model) -> None:
    results = text_model.generate(["a" * 41, "a1", [99] * 3, [99] * 50], truncate=True)
    assert [result.error for result in results] == [
        None,
        "unknown to this model: '1'",
        "expected token ids in [0, 29), found 99",
        "expected token ids in [0, 29), found 99",
    ]
    (long,) = text_model.generate(["a" * 41])
    assert long.error == (
        f"source has 42 tokens, expected at most 40, the positions of this model; {ADVICE}"
    )


def test_requests_of_one_call_differ(text_model: Model) -> None:
    options = [GenerationOptions(truncate=truncate) for truncate in (True, False)]
    cut, rejected = text_model.generate(["a" * 50] * 2, options)
    assert cut.error is None and cut.truncated
    assert rejected.finish_reason == "rejected" and not rejected.truncated
