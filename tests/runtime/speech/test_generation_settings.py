"""Generation settings of Whisper checkpoints mean what they mean to Hugging Face's `generate`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.export.exporter import generation_settings, model_spec, speech_tokens
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.model import Model

from ...speech_models import Vocabulary, noise, save, their_segments, their_tokens
from .conftest import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

AUDIO = [noise(seconds, seed) for seed, seconds in enumerate((0.31, 1.0, 0.7, 0.99, 0.05))]
Changed = Callable[..., tuple[Any, Model]]


@pytest.fixture
def changed(multilingual: Case, tmp_path: Path) -> Changed:
    """The model with other settings: theirs, and ours as read from its directory. Its graphs do not
    change; the suppressed tokens, which are in them, stay."""

    def change(**settings: Any) -> tuple[Any, Model]:
        theirs = copy.deepcopy(multilingual.theirs)
        for name, value in settings.items():
            setattr(theirs.generation_config, name, value)
        model = load_hugging_face(save(theirs, tmp_path))
        bundle = multilingual.ours.bundle
        manifest = dataclasses.replace(
            bundle.manifest,
            model=model_spec(model.config),
            generation=generation_settings(model.generation),
            speech=speech_tokens(model),
        )
        bundle = Bundle(bundle.directory, manifest)
        return theirs, Model(bundle, open_backend(bundle, "onnxruntime", 1))

    return change


@pytest.mark.parametrize(
    "settings",
    [
        {"min_length": 20},
        {"min_length": 30, "min_new_tokens": 7},
        {"min_length": 30, "min_new_tokens": 0},
        {"eos_token_id": [Vocabulary(True)["endoftext"], 5, 20]},
        {"bad_words_ids": [[5, 9], [20, 20], [4], [4, 4]]},
        {"no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_tokens_are_theirs(settings: dict[str, Any], multilingual: Case, changed: Changed) -> None:
    theirs, ours = changed(**settings)
    ends = ours.manifest.end_tokens
    cases = [(None, False), ("fr", False)]
    if len(ends) == 1:  # theirs fails with timestamps and several
        cases.append(("fr", True))
    for language, timestamps in cases:
        found = ours.generate(AUDIO, language=language, timestamps=timestamps)
        for audio, result in zip(AUDIO, found, strict=True):
            expected = their_tokens(theirs, audio, language=language, return_timestamps=timestamps)
            if expected and expected[-1] in ends:  # theirs removes none but the first end token
                assert expected.pop() == result.end_token
            assert list(result.tokens) == expected


@pytest.mark.parametrize("settings", [{"min_length": 20}, {"eos_token_id": [60, 5, 20]}])
def test_these_settings_matter(
    settings: dict[str, Any], multilingual: Case, changed: Changed
) -> None:
    _, ours = changed(**settings)
    plain = [result.tokens for result in multilingual.ours.generate(AUDIO)]
    assert [result.tokens for result in ours.generate(AUDIO)] != plain


def test_timestamps_by_default(changed: Changed) -> None:
    theirs, ours = changed(return_timestamps=True)
    assert ours.manifest.speech is not None and ours.manifest.speech.default_timestamps
    # Parity is checked without: the prompt in the manifest ends with no timestamps.
    assert ours.manifest.generation.prompt[-1] == ours.manifest.speech.no_timestamps_token_id
    for audio, result in zip(AUDIO, ours.generate(AUDIO), strict=True):
        expected = their_segments(theirs, audio)
        assert [list(s.tokens) for s in result.segments or ()] == [
            segment["tokens"].tolist() for segment in expected
        ]
    for audio, result in zip(AUDIO, ours.generate(AUDIO, timestamps=False), strict=True):
        assert list(result.tokens) == their_tokens(theirs, audio, return_timestamps=False)
