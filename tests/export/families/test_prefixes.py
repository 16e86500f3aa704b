"""An output that begins with a prefix goes on as Hugging Face's `generate` does when the decoder is
given the prefix."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.exporter import generation_settings
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.runtime import GenerationOptions, Model
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.bundle import Bundle

from .test_generate_of_hugging_face import SOURCES, bart_config, with_settings

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
transformers: Any = importlib.import_module("transformers")

LIMIT = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a forced language": {"forced_bos_token_id": 5, "forced_eos_token_id": 2},
    "rules": {
        "min_length": 7,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
        "begin_suppress_tokens": [6, 7, 11, 12],
        "bad_words_ids": [[8, token] for token in range(15, 31)],
        "length_penalty": 0.6,
    },
}
PREFIXES: list[tuple[int, ...]] = [(8,), (3,), (11, 11, 30), (4, 8), (5,), (28, 5, 14, 3, 3, 8)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, varied: Callable[..., Any]) -> Path:
    directory = tmp_path_factory.mktemp("weights")
    varied(transformers.BartForConditionalGeneration(bart_config(40))).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def plain(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    model = load_hugging_face(with_settings(weights, tmp_path_factory.mktemp("plain"), {}))
    return export_bundle(model, tmp_path_factory.mktemp("bundle"), name="random")


@pytest.fixture(params=SETTINGS)
def both(
    request: pytest.FixtureRequest, weights: Path, plain: Bundle, tmp_path: Path
) -> Iterator[tuple[Any, Model, list[int]]]:
    """Their model, our bundle, and the token that is forced to be the first."""
    settings = SETTINGS[request.param]
    directory = with_settings(weights, tmp_path, settings)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(directory)
    generation = generation_settings(load_hugging_face(directory).generation)
    manifest = dataclasses.replace(plain.manifest, generation=generation)
    bundle = Bundle(plain.directory, manifest)
    forced = [token for token in [generation.forced_first_token_id] if token is not None]
    with Model(bundle, open_backend(bundle, "onnxruntime", 1)) as model:
        yield theirs, model, forced


@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_and_scores_are_those_of_generate(
    both: tuple[Any, Model, list[int]], beams: int
) -> None:
    theirs, model, forced = both
    pairs = [(source, prefix) for source in SOURCES for prefix in PREFIXES]
    results = model.generate(
        [source for source, _ in pairs],
        [
            GenerationOptions(prefix=prefix, num_beams=beams, max_new_tokens=LIMIT)
            for _, prefix in pairs
        ],
    )
    outputs = set()
    for result, (source, prefix) in zip(results, pairs, strict=True):
        given = [2, *forced, *prefix]
        generated = theirs.generate(
            torch.tensor([source]),
            decoder_input_ids=torch.tensor([given]),
            max_new_tokens=LIMIT + 1 - len(given),
            num_beams=beams,
            return_dict_in_generate=True,
            output_scores=True,
        )
        found = [*result.tokens, *([] if result.end_token is None else [result.end_token])]
        assert [2, *found] == generated.sequences[0].tolist()
        if beams > 1:
            assert result.score == pytest.approx(float(generated.sequences_scores[0]), abs=1e-4)
        outputs.add(tuple(found))
    assert len(outputs) > len(pairs) / 2


def test_samples_and_streams_begin_with_the_prefix(both: tuple[Any, Model, list[int]]) -> None:
    _, model, forced = both
    options = GenerationOptions(prefix=(8, 3), max_new_tokens=LIMIT)
    sampling = options.replace(do_sample=True, seed=3, num_return_sequences=2)
    (sample,) = model.generate([[7, 3]], sampling)
    for hypothesis in sample.hypotheses:
        assert hypothesis.tokens[: len(forced) + 2] == (*forced, 8, 3)
        assert hypothesis.token_log_probabilities[: len(forced) + 2] == (0,) * (len(forced) + 2)
    (greedy,) = model.generate([[7, 3]], options)
    streamed = list(model.stream([7, 3], options))
    assert tuple(token.id for token in streamed if not token.is_end) == greedy.tokens
    assert sum(token.log_probability for token in streamed) <= 0
