"""Examples of attention: of the inputs that can be read and are short, and of audio in times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.runtime import Bundle, load
from dragoman.verification.report.gathering import TIMES, attention_examples

from ..speech_models import RATE, noise, save, whisper


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    directory = tmp_path_factory.mktemp("speech")
    read = read_checkpoint(save(whisper(multilingual=False), directory / "checkpoint"))
    (directory / "bundle").mkdir()
    return export_bundle(
        read.model,
        directory / "bundle",
        name="speech",
        tokenizers=read.tokenizers,
        attention=True,
    )


def test_audio_is_shown_over_time(
    speech: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are joined where there are too many; clips of more than a window are passed over."""
    for name, seconds in (("a", 1.4), ("b", 0.9), ("c", 0.5)):
        soundfile.write(tmp_path / f"{name}.wav", noise(seconds, seed=3), RATE)
    with load(speech.directory, threads=1) as model:
        expected = model.attention(tmp_path / "b.wav")
    found = attention_examples(speech, tmp_path, threads=1)
    assert [(example.text, example.unit) for example in found] == [
        (f"{tmp_path.name}/{name}", "s") for name in ("b.wav", "c.wav")
    ]
    assert found[0].columns == expected.source and len(expected.source) < TIMES
    np.testing.assert_allclose(found[0].weights, expected.aligning, atol=1e-4)
    monkeypatch.setattr("dragoman.verification.report.gathering.TIMES", 13)
    joined = attention_examples(speech, tmp_path, threads=1)[0]
    assert joined.columns == expected.source[::4] and len(joined.columns) == 13
    np.testing.assert_allclose(np.sum(joined.weights, axis=1), 1, atol=1e-3)
    fourth = expected.aligning[:, 12:16].sum(axis=1)
    np.testing.assert_allclose(np.array(joined.weights)[:, 3], fourth, atol=1e-4)
