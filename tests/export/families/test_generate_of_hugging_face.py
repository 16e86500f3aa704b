"""A checkpoint with given generation settings decodes as Hugging Face's `generate` does from the
same directory."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.exporter import (
    default_max_new_tokens,
    generation_settings,
    model_spec,
)
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import Transformer, greedy_cached, greedy_uncached, pad
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.model import Model

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:Unfeasible length constraints:UserWarning",
    "ignore:Using the model-agnostic default:UserWarning",
)
transformers: Any = importlib.import_module("transformers")

VOCABULARY, LIMIT = 31, 14
SOURCES = [
    [7, 3, 9, 2],
    [5],
    [11, 12, 12, 30, 8, 2, 19],
    [3],
    [11, 20, 23, 4, 17, 6, 9, 9, 2],
    [4, 4],
    [28, 5, 14],
]
TOKENS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several end tokens": {"eos_token_id": [2, 11, 25, 8]},
    "several end tokens, but late": {"eos_token_id": [11, 25, 8, 2], "min_length": 6},
    "no end token": {"eos_token_id": None},
    "no start token": {"decoder_start_token_id": None},
    "new tokens instead of a length": {"min_new_tokens": 2, "min_length": 10},
    "no new tokens instead of a length": {"min_new_tokens": 0, "min_length": 10},
    "no n-gram of the source": {"encoder_no_repeat_ngram_size": 1},
    "no pair of the source": {"encoder_no_repeat_ngram_size": 2, "no_repeat_ngram_size": 2},
    "bad words": {
        "bad_words_ids": [[w] for w in range(3, 14)]
        + [[a, b] for a in range(14, 31) for b in (14, 15, 16, 17, 18, 19, 20, 21, 22)]
        + [[2, 23], [2], [23, 24, 25]]
    },
    "bad words after the start token": {"bad_words_ids": [[2, w] for w in range(3, 31)]},
    "no token left": {
        "bad_words_ids": [[w] for w in range(31)],
        "begin_suppress_tokens": list(range(31)),
    },
    "unknown suppressed tokens": {
        "suppress_tokens": [-1, 9, 31, 400],
        "begin_suppress_tokens": [-1, 99, 7],
    },
    "forced": {"forced_bos_token_id": 5, "forced_eos_token_id": [9, 7, 8]},
    "forced and in part suppressed": {"forced_eos_token_id": [5, 7], "suppress_tokens": [5]},
    "forced and a bad word": {"forced_bos_token_id": 5, "bad_words_ids": [[5], [5, 5]]},
    "forced at the end and suppressed at the beginning": {
        "forced_eos_token_id": 2,
        "begin_suppress_tokens": [2, 9],
    },
    "all forced, the end suppressed at the beginning": {
        "forced_bos_token_id": 6,
        "forced_eos_token_id": 2,
        "begin_suppress_tokens": [2],
    },
    "switched off": {"no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0},
}


WITHOUT_EFFECT = ("no new tokens instead of a length", "switched off")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, varied: Callable[..., Any]) -> Path:
    directory = tmp_path_factory.mktemp("weights")
    varied(transformers.BartForConditionalGeneration(bart_config(40))).save_pretrained(directory)
    return directory


def bart_config(positions: int) -> Any:
    return transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=24,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_position_embeddings=positions,
        **TOKENS,
    )


def with_settings(weights: Path, directory: Path, settings: dict[str, Any] | None) -> Path:
    """The checkpoint with these settings; None: without the file of settings."""
    for path in weights.iterdir():
        if path.name != "generation_config.json":
            (directory / path.name).symlink_to(path)
    if settings is not None:
        stated = {name: v for name, v in {**TOKENS, **settings}.items() if v is not None}
        (directory / "generation_config.json").write_text(json.dumps(stated))
    return directory


def with_fields(directory: Path, **fields: Any) -> None:
    """Replace fields of config.json; those that are None are removed."""
    path = directory / "config.json"
    values = json.loads(path.read_text()) | fields
    values = {name: value for name, value in values.items() if value is not None}
    path.unlink()
    path.write_text(json.dumps(values))


def their_outputs(
    directory: Path, sources: Sequence[Sequence[int]], limit: int, kind: str = "Bart"
) -> list[list[int]]:
    """The new tokens of each source in a batch of one, up to and including its end token.

    Alone, since their n-grams of a source include its padding.
    """
    theirs = getattr(transformers, f"{kind}ForConditionalGeneration").from_pretrained(directory)
    outputs = []
    for source in sources:
        ids = torch.tensor([source])
        generated = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, num_beams=1
        )
        outputs.append(generated[0, 1:].tolist())
    return outputs


def our_outputs(model: Transformer, limit: int) -> list[list[int]]:
    found = greedy_uncached(model, SOURCES, limit)
    assert greedy_cached(model, SOURCES, limit) == found
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_the_oracle_follows_the_settings(name: str, weights: Path, tmp_path: Path) -> None:
    directory = with_settings(weights, tmp_path, SETTINGS[name])
    ours = load_hugging_face(directory)
    for limit in (1, 2, LIMIT):
        assert our_outputs(ours, limit) == their_outputs(directory, SOURCES, limit)


@pytest.fixture(scope="module")
def exported(
    weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Transformer], Bundle]:
    """The bundle of a model. Graphs are exported once for each set of suppressed tokens, the only
    rule that they know; the others are in the manifest."""
    bundles: dict[tuple[int, ...], Bundle] = {}

    def export(model: Transformer) -> Bundle:
        suppressed = model.generation.suppressed_token_ids
        if suppressed not in bundles:
            directory = tmp_path_factory.mktemp("bundle")
            bundles[suppressed] = export_bundle(model, directory, name="random")
        bundle = bundles[suppressed]
        manifest = dataclasses.replace(
            bundle.manifest,
            model=model_spec(model.config),
            generation=generation_settings(model.generation),
        )
        return Bundle(bundle.directory, manifest)

    return export


@pytest.mark.parametrize("name", SETTINGS)
def test_a_bundle_follows_the_settings(
    name: str, weights: Path, tmp_path: Path, exported: Callable[[Transformer], Bundle]
) -> None:
    model = load_hugging_face(with_settings(weights, tmp_path, SETTINGS[name]))
    bundle = exported(model)
    with Model(bundle, open_backend(bundle, "onnxruntime", 1)) as loaded:
        for limit in (1, 2, LIMIT):
            results = loaded.generate(SOURCES, max_new_tokens=limit)
            found = [
                [*result.tokens, *([] if result.end_token is None else [result.end_token])]
                for result in results
            ]
            assert found == greedy_uncached(model, SOURCES, limit)
            for result in results:
                assert (result.finish_reason == "end") == (result.end_token is not None)


def test_the_settings_matter(weights: Path, tmp_path: Path) -> None:
    """The tests above would mean little otherwise."""
    outputs = {}
    for name, settings in SETTINGS.items():
        (directory := tmp_path / name).mkdir()
        model = load_hugging_face(with_settings(weights, directory, settings))
        outputs[name] = str(our_outputs(model, LIMIT))
    same = [name for name, output in outputs.items() if output == outputs["plain"]]
    assert same == ["plain", *WITHOUT_EFFECT]
    assert len(set(outputs.values())) == len(SETTINGS) - len(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    "fields",
    [
        {"force_bos_token_to_be_generated": True},
        {"min_length": 5},
        {"decoder_start_token_id": None},
        {"eos_token_id": None, "decoder_start_token_id": 4},
    ],
    ids=str,
)
def test_settings_in_config_json(fields: dict[str, Any], weights: Path, tmp_path: Path) -> None:
    """As in checkpoints older than `generation_config.json`."""
    directory = with_settings(weights, tmp_path, None)
    plain = our_outputs(load_hugging_face(directory), LIMIT)
    with_fields(directory, **fields)
    found = our_outputs(load_hugging_face(directory), LIMIT)
    assert found == their_outputs(directory, SOURCES, LIMIT)
    assert found != plain


def test_settings_in_config_json_do_not_count_beside_a_file_of_settings(
    weights: Path, tmp_path: Path
) -> None:
    directory = with_settings(weights, tmp_path, {})
    plain = our_outputs(load_hugging_face(directory), LIMIT)
    with_fields(directory, force_bos_token_to_be_generated=True, min_length=9)
    assert our_outputs(load_hugging_face(directory), LIMIT) == plain
    assert their_outputs(directory, SOURCES, LIMIT) == plain


def test_no_end_token_is_noted(weights: Path, tmp_path: Path) -> None:
    directory = with_settings(weights, tmp_path, {"eos_token_id": None, "max_length": 20})
    read = read_checkpoint(directory)
    assert read.notes == (
        "generation_config.json has no eos_token_id: outputs end at their limit only, as those of "
        'Hugging Face\'s generate; config.json has 2: add "eos_token_id": 2 there',
    )
    assert isinstance(read.model, Transformer)
    assert all(len(output) == LIMIT for output in our_outputs(read.model, LIMIT))


@pytest.mark.parametrize("stated", [None, []])
def test_no_end_token_in_config_json_is_noted(stated: Any, weights: Path, tmp_path: Path) -> None:
    directory = with_settings(weights, tmp_path, None)
    with_fields(directory, eos_token_id=None, max_length=20)
    if stated is not None:
        (directory / "generation_config.json").write_text(
            json.dumps({"bos_token_id": 0, "eos_token_id": stated, "max_length": 20})
        )
    (note,) = read_checkpoint(directory).notes
    file = "config.json" if stated is None else "generation_config.json"
    assert note == (
        f"{file} has no eos_token_id: outputs end at their limit only, as those of Hugging Face's "
        "generate"
    )


def test_an_output_longer_than_the_positions_is_noted(weights: Path, tmp_path: Path) -> None:
    directory = with_settings(weights, tmp_path, {"max_length": 200})
    assert read_checkpoint(directory).notes == (
        "outputs end after 40 tokens, as many as the model has positions; the generation settings "
        "allow 199",
    )


STATED: list[dict[str, Any]] = [
    {},
    {"max_length": 9},
    {"max_new_tokens": 9, "max_length": 3},
    {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
    {"num_beams": None, "length_penalty": None, "early_stopping": None, "top_k": None},
    {"num_beams": 2, "early_stopping": "never", "length_penalty": -1.5},
    {"length_penalty": 2.0, "early_stopping": False},
    {"do_sample": True},
    {"do_sample": True, "temperature": 0.25, "top_p": 0.5, "top_k": 0, "min_p": 0.125},
    {"do_sample": True, "top_k": 7, "num_beams": 1},
]


@pytest.mark.parametrize("settings", STATED, ids=str)
def test_the_strategy_is_the_one_that_generate_takes_without_options(
    settings: dict[str, Any], weights: Path, tmp_path: Path
) -> None:
    directory = with_settings(weights, tmp_path, settings)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(directory)
    resolved, _ = theirs._prepare_generation_config(None)
    model = load_hugging_face(directory)
    for found in (model.generation, generation_settings(model.generation)):
        assert found.num_beams == resolved.num_beams
        assert found.length_penalty == resolved.length_penalty
        assert found.early_stopping == resolved.early_stopping
        assert found.do_sample == resolved.do_sample
        if found.do_sample:
            assert found.temperature == resolved.temperature
            assert found.top_k == resolved.top_k
            assert found.top_p == resolved.top_p
            assert found.min_p == (resolved.min_p or 0)


@pytest.mark.parametrize("positions", [40, 12])
@pytest.mark.parametrize("stated", [{}, {"max_length": 9}, {"max_new_tokens": 9}], ids=str)
def test_outputs_without_options_end_where_theirs_do(
    stated: dict[str, Any],
    positions: int,
    tmp_path: Path,
    varied: Callable[..., Any],
) -> None:
    """The end token is out of reach."""
    theirs = varied(transformers.BartForConditionalGeneration(bart_config(positions)))
    theirs.generation_config = transformers.GenerationConfig(
        **TOKENS | {"suppress_tokens": [2]} | stated
    )
    theirs.save_pretrained(tmp_path)
    generated = theirs.generate(torch.tensor([[5, 6, 2]]))
    assert default_max_new_tokens(load_hugging_face(tmp_path)) == generated.shape[1] - 1


@pytest.mark.parametrize("activation", ["quick_gelu", "tanh"])
def test_activations(activation: str, weights: Path, tmp_path: Path) -> None:
    directory = with_settings(weights, tmp_path, {})
    with_fields(directory, activation_function=activation)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(directory).eval()
    source, mask = pad(SOURCES, 1)
    target = torch.randint(3, VOCABULARY, (len(SOURCES), 9), generator=torch.manual_seed(1))
    with torch.inference_mode():
        expected = theirs(
            input_ids=source, attention_mask=mask.long(), decoder_input_ids=target
        ).logits
        found = load_hugging_face(directory)(source, mask, target)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
