"""Each kind of model has known answers, which it passes, and which notice a changed weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.reference_model import LanguageModel, ModelConfig
from dragoman.reference_model.generation import GenerationConfig
from dragoman.runtime import KnownAnswersError, load
from dragoman.runtime.format.known_answers import GeneratedAnswer
from dragoman.verification import known_answers as making

from ..bundle_files import add_answers, record_again
from ..serving.conftest import make_speech, make_vectors
from ..zoo import LETTERS, letters_model


def check(directory: Path) -> None:
    """The bundle passes, and is refused after some of its weights have changed."""
    load(directory, threads=1, check="always").close()
    weights = np.fromfile(directory / "weights.bin", np.float32)
    weights[len(weights) // 3 :][:50] += 0.5
    weights.tofile(directory / "weights.bin")
    record_again(directory)
    with pytest.raises(KnownAnswersError, match="known answers differ"):
        load(directory, threads=1)


@pytest.mark.parametrize("kind", ["bert", "whisper"])
def test_encoders_and_speech(kind: str, tmp_path: Path) -> None:
    make = {"bert": make_vectors, "whisper": make_speech}[kind]
    directory = make(tmp_path / "bundle")
    assert add_answers(directory, read_checkpoint(tmp_path / kind).model).at_load
    check(directory)


def test_a_large_encoder_of_speech_hears_one_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is twice as long as the shortest of others."""
    monkeypatch.setattr(making, "PRODUCTS", 0)
    monkeypatch.setattr(making, "SECONDS", (0.05, 0.1))  # within its window
    directory = make_speech(tmp_path / "bundle")
    reference = read_checkpoint(tmp_path / "whisper").model
    for weights, sounds, steps in ((2e8, 2, 4), (1, 1, 8)):
        monkeypatch.setattr(making, "LARGE_ENCODER", weights)
        known = add_answers(directory, reference)
        asked = [a for a in known.answers if isinstance(a, GeneratedAnswer)]
        assert [a.max_new_tokens for a in asked] == [steps] * sounds


def test_beams(tmp_path: Path) -> None:
    """The oracle of its output is the search itself, whose score is that of its tokens."""
    model = letters_model()
    model.generation = GenerationConfig(num_beams=4, length_penalty=0.6)
    export_bundle(model, tmp_path, name="letters")
    known = add_answers(tmp_path, model)
    (answer,) = (a for a in known.at_load if isinstance(a, GeneratedAnswer) and a.num_beams > 1)
    assert answer.num_beams == 4
    assert answer.margins == ()
    with load(tmp_path, threads=1, check="always") as loaded:
        (scored,) = loaded.score([(answer.source, answer.tokens)], end_token=False)
    assert sum(scored.token_log_probabilities) == pytest.approx(answer.score, abs=1e-4)
    check(tmp_path)


def test_a_decoder_alone(tmp_path: Path) -> None:
    """One of them reaches beyond position 128, where the model has room."""
    changes = {"source_vocab_size": 0, "encoder_layers": 0, "max_source_positions": 0}
    config = ModelConfig.from_dict(LETTERS | changes | {"max_target_positions": 150})
    torch.manual_seed(0)
    model = LanguageModel(config).eval()
    export_bundle(model, tmp_path, name="letters")
    known = add_answers(tmp_path, model)
    answers = [a for a in known.at_load if isinstance(a, GeneratedAnswer)]
    assert len(answers) > 4
    assert max(len(a.source) + len(a.tokens) for a in answers) > 128
    check(tmp_path)
