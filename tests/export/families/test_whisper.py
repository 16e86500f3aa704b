"""Whisper: tensors, greedy tokens and prompts are those of Hugging Face's implementation."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.errors import DragomanError
from dragoman.export.checkpoints import open_checkpoint, read_checkpoint, shorten_window
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.export.locating import locate_checkpoint
from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    Transformer,
    greedy_cached,
    greedy_uncached,
)
from dragoman.settings.speech import SpeechTokens

from ...speech_models import LANGUAGES, MODELS, Vocabulary, save

transformers: Any = importlib.import_module("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Hugging Face's model, and ours read from its directory."""
    theirs = MODELS[request.param]()
    directory = tmp_path_factory.mktemp(request.param)
    return theirs, load_hugging_face(save(theirs, directory))


def features(model: Transformer, count: int, *, seed: int = 0) -> torch.Tensor:
    assert model.config.feature_size is not None
    shape = (count, model.config.feature_size, model.config.feature_frames)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_encoder_and_logits_are_theirs(pair: tuple[Any, Transformer]) -> None:
    theirs, ours = pair
    source = features(ours, 3)
    config = ours.config
    length = config.max_target_positions
    target = torch.randint(
        config.target_vocab_size, (3, length), generator=torch.Generator().manual_seed(1)
    )
    expected = theirs(input_features=source, decoder_input_ids=target)
    found = ours.encoder(source, None)
    assert (found - expected.encoder_last_hidden_state).abs().max() < TOLERANCE
    mask = torch.ones(3, config.max_source_positions, dtype=torch.bool)
    assert (ours(source, mask, target) - expected.logits).abs().max() < TOLERANCE


@torch.inference_mode()
def test_a_shorter_window(pair: tuple[Any, Transformer], tmp_path: Path) -> None:
    """Theirs is a model of another configuration, with the first position embeddings only."""
    theirs, _ = pair
    directory = save(theirs, tmp_path)
    ours = open_checkpoint(locate_checkpoint(directory), audio_window=0.46)
    assert ours.notes[-1].startswith("the encoder reads 0.46 s of audio at once, and was trained")
    config = transformers.WhisperConfig(**theirs.config.to_dict() | {"max_source_positions": 23})
    shorter = transformers.WhisperForConditionalGeneration(config).eval()
    weights, name = theirs.state_dict(), "model.encoder.embed_positions.weight"
    shorter.load_state_dict(weights | {name: weights[name][:23]})
    model = ours.model
    assert isinstance(model, Transformer) and model.config.max_source_positions == 23
    source, target = features(model, 3), torch.tensor([[5, 9, 4]] * 3)
    expected = shorter(input_features=source, decoder_input_ids=target)
    assert (model.encoder(source, None) - expected.encoder_last_hidden_state).abs().max() < 1e-4
    logits = model(source, torch.ones(3, 23, dtype=torch.bool), target)
    assert (logits - expected.logits).abs().max() < TOLERANCE


def test_windows_of_any_positions(checkpoint: Path) -> None:
    model = read_checkpoint(checkpoint).model
    for positions in range(model.config.max_source_positions, 0, -1):
        shorten_window(model, round(0.02 * positions, 2))
        assert model.config.max_source_positions == positions
    with pytest.raises(DragomanError, match=r"seconds up to 0\.02, in steps of 0\.02, found 0\.03"):
        shorten_window(model, 0.03)


def test_greedy_tokens_are_theirs(pair: tuple[Any, Transformer]) -> None:
    """After the prompt that is the model's default."""
    theirs, ours = pair
    source = features(ours, 4, seed=2)
    limit = ours.generation.max_new_tokens
    assert limit is not None
    language = {"language": "en"} if theirs.generation_config.is_multilingual else {}
    generated = theirs.generate(source, max_new_tokens=limit, **language).tolist()
    end = ours.config.end_token_id
    found = greedy_uncached(ours, list(source), limit)
    assert [row + [end] * (len(generated[0]) - len(row)) for row in found] == generated
    assert greedy_cached(ours, list(source), limit) == found


def test_tokens_of_the_prompt(pair: tuple[Any, Transformer]) -> None:
    theirs, ours = pair
    several = theirs.generation_config.is_multilingual
    vocabulary = Vocabulary(several)
    assert ours.generation.speech == SpeechTokens(
        languages={code: vocabulary[code] for code in LANGUAGES} if several else {},
        tasks={task: vocabulary[task] for task in ("transcribe", "translate")} if several else {},
        no_timestamps_token_id=vocabulary["notimestamps"],
        max_initial_timestamp_index=20,
        default_task="transcribe" if several else None,
    )
    names = ["en", "transcribe", "notimestamps"] if several else ["notimestamps"]
    assert ours.generation.prompt == tuple(map(vocabulary.__getitem__, names))
    positions = theirs.config.max_target_positions
    assert ours.generation.max_new_tokens == positions - 1 - len(names)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(MODELS["distilled"](), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def changed(checkpoint: Path, tmp_path: Path) -> Any:
    """The checkpoint with values of one of its JSON files replaced."""

    def change(file: str, **values: Any) -> Path:
        for path in checkpoint.iterdir():
            (tmp_path / path.name).symlink_to(path)
        before = json.loads((checkpoint / file).read_text())
        (tmp_path / file).unlink()
        (tmp_path / file).write_text(json.dumps(before | values))
        return tmp_path

    return change


@pytest.mark.parametrize(
    ("stated", "language", "task"),
    [
        ({"language": "french", "task": None}, "fr", None),
        ({"language": "<|de|>", "task": "translate"}, "de", "translate"),
        ({"forced_decoder_ids": None}, None, None),
        ({"forced_decoder_ids": [[1, 64], [2, 67], [3, 71]]}, "fr", "transcribe"),
    ],
)
def test_language_and_task_that_are_stated(
    changed: Any, stated: dict[str, Any], language: str | None, task: str | None
) -> None:
    speech = load_hugging_face(changed("generation_config.json", **stated)).generation.speech
    assert speech is not None
    assert (speech.default_language, speech.default_task) == (language, task)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"language": "klingon"}, "language: expected one of .*, found 'klingon'"),
        ({"task": "sing", "language": "de"}, "task: expected one of .*, found 'sing'"),
        ({"lang_to_id": ["en"]}, "lang_to_id: expected an object of token ids"),
        ({"no_timestamps_token_id": "last"}, "no_timestamps_token_id: expected an integer"),
        ({"forced_decoder_ids": [3]}, "forced_decoder_ids: expected pairs"),
        *(
            ({"alignment_heads": heads}, "alignment_heads: expected pairs of layer and head")
            for heads in (3, "all", {"0": 1}, [0, 1], [[0]], [[0, 1, 2]], [[0, -1]], [[0, 1.5]])
        ),
    ],
)
def test_settings_that_are_wrong(changed: Any, stated: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_hugging_face(changed("generation_config.json", **stated))


def test_alignment_heads_that_are_there(checkpoint: Path, changed: Any) -> None:
    """Counted from 0: the last layer and the last head are the highest that there are."""
    config = json.loads((checkpoint / "config.json").read_text())
    last = [config["decoder_layers"] - 1, config["decoder_attention_heads"] - 1]
    read = read_checkpoint(changed("generation_config.json", alignment_heads=[[0, 0], last]))
    assert isinstance(read.model, Transformer)
    assert read.model.generation.alignment_heads == ((0, 0), tuple(last))
    assert not any("alignment_heads" in note for note in read.notes)


@pytest.mark.parametrize("heads", [[[0, 0], [25, 0]], [[0, 99]]], ids=["layer", "head"])
def test_alignment_heads_of_the_teacher_are_a_note(changed: Any, heads: list[list[int]]) -> None:
    """As distilled models have them, whose decoders are shorter than what they were made from."""
    read = read_checkpoint(changed("generation_config.json", alignment_heads=heads))
    assert isinstance(read.model, Transformer)
    assert read.model.generation.alignment_heads == ()
    assert sum("alignment_heads: the decoder has" in note for note in read.notes) == 1


def test_other_features_are_refused(changed: Any) -> None:
    with pytest.raises(CheckpointError, match="hop_length: expected 160, found 128"):
        load_hugging_face(changed("preprocessor_config.json", hop_length=128))


def test_features_of_transformers_are_known(checkpoint: Path, tmp_path: Path) -> None:
    """As its versions 4 and 5 write them; `dither` would add noise."""
    extractor = transformers.WhisperFeatureExtractor().to_dict()
    for path in checkpoint.iterdir():
        if path.name != "preprocessor_config.json":
            (tmp_path / path.name).symlink_to(path)
    before = read_checkpoint(tmp_path).notes
    for name, settings in (
        ("processor_config.json", {"feature_extractor": extractor}),
        ("preprocessor_config.json", extractor),
    ):
        (tmp_path / name).write_text(json.dumps(settings))
        assert read_checkpoint(tmp_path).notes == before
        (tmp_path / name).write_text(json.dumps(settings).replace('"dither": 0.0', '"dither": 0.1'))
        with pytest.raises(CheckpointError, match=f"{name}: dither: this setting is not supported"):
            read_checkpoint(tmp_path)


def test_without_generation_settings_the_tokenizer_names_the_tokens(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in checkpoints older than `generation_config.json`."""
    from dragoman.export.families import whisper

    for path in checkpoint.iterdir():
        if path.name not in ("config.json", "generation_config.json"):
            (tmp_path / path.name).symlink_to(path)
    values = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"begin_suppress_tokens": [3, 60]}))
    vocabulary = Vocabulary(True)
    english = load_hugging_face(tmp_path).generation.speech
    assert english == SpeechTokens(no_timestamps_token_id=vocabulary["notimestamps"])
    monkeypatch.setattr(whisper, "MULTILINGUAL_VOCAB_SIZE", vocabulary.size)
    several = load_hugging_face(tmp_path).generation.speech
    assert several is not None
    assert several.languages == {code: vocabulary[code] for code in LANGUAGES}
    assert set(several.tasks) == {"transcribe", "translate"}
