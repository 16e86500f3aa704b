"""The parts of a manifest that only speech models have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.runtime.format.manifest import BundleError
from dragoman.runtime.format.validation import manifest_from_json

Plain = dict[str, Any]


@pytest.fixture
def plain_speech(plain_manifest: Plain) -> Plain:
    """A valid manifest of a speech model."""
    plain_manifest["model"]["source_vocab_size"] = None
    encoder, decoder = plain_manifest["graphs"].values()
    source, _ = encoder["inputs"]
    encoder["inputs"] = [source | {"dtype": "float32", "shape": ["source_batch", 5, 16]}]
    for tensor in (*encoder["outputs"], *decoder["inputs"]):
        tensor["shape"] = [8 if axis == "source" else axis for axis in tensor["shape"]]
    return plain_manifest | {
        "audio": {
            "bins": 5,
            "sampling_rate": 8000,
            "n_fft": 400,
            "hop": 100,
            "chunk_seconds": 0.2,
        },
        "speech": {
            "languages": {"en": 3, "de": 4},
            "tasks": {"transcribe": 5},
            "no_timestamps_token_id": 7,
            "max_initial_timestamp_index": 2,
            "default_language": "de",
            "default_task": None,
            "default_timestamps": False,
        },
    }


def test_what_is_written_is_read_back_equal(plain_speech: Plain) -> None:
    manifest = manifest_from_json(json.dumps(plain_speech), "p")
    assert json.loads(manifest.to_json()) == plain_speech
    audio, speech = manifest.audio, manifest.speech
    assert audio is not None and speech is not None
    assert (audio.samples, audio.frames, speech.timestamp_begin) == (1600, 16, 8)


def change(record: str, **values: Any) -> Callable[[Plain], None]:
    def apply(manifest: Plain) -> None:
        manifest[record] |= values

    return apply


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            change("audio", bins=6),
            "source: expected shape ['source_batch', 6, 16], found ['source_batch', 5, 16]",
        ),
        (
            change("audio", chunk_seconds=0.3),
            "source: expected shape ['source_batch', 5, 24], found ['source_batch', 5, 16]",
        ),
        (change("audio", hop=0), "audio.hop: expected at least 1, found 0"),
        (change("audio", chunk_seconds=-1), "audio.chunk_seconds: expected over 0, found -1"),
        (
            change("speech", languages={"en": 13}),
            "languages.en: expected a token id in [0, 13)",
        ),
        (change("speech", tasks={"translate": -1}), "speech.tasks.translate: expected a token id"),
        (
            change("speech", no_timestamps_token_id=12),
            "in [0, 12), followed by timestamps, found 12",
        ),
        (change("speech", default_language="fr"), "expected one of de, en, found 'fr'"),
        (
            change("speech", default_task="translate"),
            "one of transcribe, found 'translate'",
        ),
        (change("speech", max_initial_timestamp_index=-1), "expected at least 0, found -1"),
        (lambda m: m.update(speech=None), "speech: expected one"),
        (lambda m: m.update(audio=None), "audio: expected one"),
    ],
)
def test_a_problem_is_reported(
    plain_speech: Plain, damage: Callable[[Plain], None], problem: str
) -> None:
    damage(plain_speech)
    with pytest.raises(BundleError) as caught:
        manifest_from_json(json.dumps(plain_speech), "p")
    assert any(problem in found for found in caught.value.problems), caught.value.problems


def test_a_text_model_has_no_speech_tokens(plain_manifest: Plain) -> None:
    plain_manifest["speech"] = {}
    with pytest.raises(BundleError, match="speech: expected none, as "):
        manifest_from_json(json.dumps(plain_manifest), "p")
