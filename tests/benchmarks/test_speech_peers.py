"""Other tools are given the same Whisper, and transcribe as Dragoman does."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.benchmarks.compare.contenders.speech import (
    OPENAI_WHISPER,
    OPENVINO_GENAI,
    WHISPER_CPP,
    SpeechContender,
    Transcript,
    contenders,
)
from dragoman.benchmarks.compare.rounds import Worker, prepare
from dragoman.benchmarks.models import random_checkpoint
from dragoman.benchmarks.models.random_checkpoint import write_random_whisper
from dragoman.benchmarks.models.real_models import whisper as whisper_weights
from dragoman.benchmarks.models.real_models import whisper_checkpoint
from dragoman.benchmarks.models.shapes import WHISPERS, stacks
from dragoman.benchmarks.peers.interface import Way
from dragoman.benchmarks.peers.openvino import MODES
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer

from ..speech_models import MODELS, RATE, noise, save, whisper
from .doubles import OPENVINO, OPENVINO_PYTHON

CLIPS = Path(__file__).parents[1] / "real" / "clips"


def transformer(directory: Path) -> Transformer:
    model = load_hugging_face(directory)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize("name", ["english", "multilingual"])
def test_the_checkpoint_is_the_same_model(name: str, tmp_path: Path) -> None:
    source = save(MODELS[name](), tmp_path / "source")
    written = whisper_checkpoint(source, tmp_path / "written")
    expected, found = transformer(source), transformer(written)
    assert (found.config, found.generation) == (expected.config, expected.generation)
    parameters = dict(found.named_parameters())
    for parameter, value in expected.named_parameters():
        assert torch.equal(parameters[parameter], value), parameter
    name = "tokenizer.json"
    assert (written / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.peers
@pytest.mark.skipif(OPENVINO_PYTHON is None, reason="DRAGOMAN_OPENVINO_PYTHON is not set")
@pytest.mark.parametrize("multilingual", [False, True])
def test_openvino_transcribes_the_same(multilingual: bool, tmp_path: Path) -> None:
    """Optimum-Intel exports windows of 30 seconds only."""
    soundfile: Any = importlib.import_module("soundfile")
    model = whisper(multilingual=multilingual, max_source_positions=1500)
    source = save(model, tmp_path / "source")
    clips = [tmp_path / f"{seed}.wav" for seed in range(3)]
    for seed, clip in enumerate(clips):
        soundfile.write(clip, noise(0.7 + 0.1 * seed, seed), RATE, subtype="FLOAT")
    everyone = contenders(whisper_checkpoint(source, tmp_path / "checkpoint"), OPENVINO)
    by_name = {contender.name: contender for contender in everyone}
    expected, found, bf16, int8 = (
        transcripts(by_name[contender], source, tmp_path, clips)
        for contender in ("Dragoman fp32", *(f"{OPENVINO_GENAI} {mode}" for mode in MODES))
    )
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.text.split() == ours.text.split()  # their detokenizer adds spaces
        # Where the limit ends the output, only Dragoman counts an end token.
        assert ours.stages is not None and theirs.stages is not None
        assert ours.stages.tokens - theirs.stages.tokens in (0, 1)
    for transcript in (*found, *bf16, *int8):
        assert transcript.text and transcript.stages is not None
        assert 0 < transcript.stages.encoder < transcript.seconds + 1
        assert transcript.stages.decoder > 0


@pytest.mark.peers
@pytest.mark.parametrize("way", ["greedy", "published"])
def test_others_transcribe_the_same(way: Way, tmp_path: Path) -> None:
    """With trained weights, as whisper.cpp and openai-whisper have the vocabulary built in."""
    source = whisper_weights("tiny.en")
    clips = [CLIPS / "librivox-0930.flac"]
    others = [f"{WHISPER_CPP} f16", f"{WHISPER_CPP} q8_0", f"{OPENAI_WHISPER} fp32"]
    checkpoint = whisper_checkpoint(source, tmp_path / "checkpoint")
    everyone = contenders(checkpoint, way=way, num_beams=2)
    by_name = {contender.name: contender for contender in everyone}
    (expected,), *found = (
        transcripts(by_name[name], source, tmp_path, clips)
        for name in ("Dragoman fp32", *others, "transformers fp32")
    )
    for (each,) in found:
        assert each.text.split() == expected.text.split()
        assert each.stages is None


@pytest.mark.peers
def test_a_random_model_hears_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the audio, in every precision, it ends after the tokens of the sentence."""
    soundfile: Any = importlib.import_module("soundfile")
    monkeypatch.setitem(WHISPERS, "two layers", stacks(48, 2, 3, 96))
    monkeypatch.setattr(random_checkpoint, "SENTENCE", range(20, 27))
    like = save(whisper(multilingual=True, max_source_positions=1500), tmp_path / "like")
    write_random_whisper("two layers", tmp_path / "source", like=like)
    clips = [tmp_path / f"{seed}.wav" for seed in range(2)]
    for seed, clip in enumerate(clips):
        soundfile.write(clip, noise(0.7 + seed, seed), RATE, subtype="FLOAT")
    for contender in contenders(whisper_checkpoint(tmp_path / "source", tmp_path / "checkpoint")):
        if contender.name in ("Dragoman fp32", "Dragoman int8"):
            found = transcripts(contender, tmp_path / "source", tmp_path, clips)
            assert found[0].text == found[1].text
            assert found[0].text.endswith("w20 w21 w22 w23 w24 w25 w26")
            # CTranslate2 finds no languages in this vocabulary: the prompt is two tokens shorter.
            assert [each.stages and each.stages.tokens for each in found] == [2 + 8, 2 + 8]


def transcripts(
    contender: SpeechContender, source: Path, workspace: Path, clips: list[Path]
) -> list[Transcript]:
    directory = prepare(contender, source, workspace / contender.name.replace(" ", "-"))
    worker = Worker(contender, directory, 1)
    try:
        return worker.perform(clips).outcome
    finally:
        worker.kill()
