"""GPT-2, compared with Hugging Face's own implementation on random models."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import (
    CheckpointError,
    LanguageModel,
    beam_search_uncached,
    greedy_uncached,
)
from dragoman.runtime import Model, load

transformers: Any = importlib.import_module("transformers")

PROMPTS = [[5, 9, 12, 3, 7], [8], [4, 4, 11], [10, 3, 6, 7, 8, 9, 20, 21, 22], [1, 2], [30], [6, 5]]
CONFIG: dict[str, Any] = {
    "vocab_size": 37,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "n_positions": 23,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "initializer_range": 0.3,
}
NEW = 12

Make = Callable[..., tuple[Any, Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(seed: int = 0, generation: dict[str, Any] | None = None, **changes: Any) -> Any:
        torch.manual_seed(seed)
        config = transformers.GPT2Config(**CONFIG | changes)
        theirs = transformers.GPT2LMHeadModel(config).eval()
        for parameter in theirs.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        theirs.generation_config.pad_token_id = 0
        for name, value in (generation or {}).items():
            setattr(theirs.generation_config, name, value)
        theirs.save_pretrained(tmp_path / "gpt2")
        return theirs, tmp_path / "gpt2"

    return make


def read(directory: Path) -> LanguageModel:
    model = read_checkpoint(directory).model
    assert isinstance(model, LanguageModel)
    return model


def generated(theirs: Any, prompt: list[int], **options: Any) -> list[int]:
    """Their new tokens in a batch of one, up to and including the end token."""
    with torch.inference_mode():
        found = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            **{"max_new_tokens": NEW, "do_sample": False} | options,
        )
    new: list[int] = found[0, len(prompt) :].tolist()
    return new[: new.index(0) + 1] if 0 in new else new


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_inner": 17, "activation_function": "relu", "layer_norm_epsilon": 1e-3},
        {"n_head": 2, "n_embd": 10},
        {"tie_word_embeddings": False},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_logits(changes: dict[str, Any], make: Make) -> None:
    theirs, directory = make(**changes)
    ours = read(directory)
    for prompt in PROMPTS:
        with torch.inference_mode():
            expected = theirs(torch.tensor([prompt])).logits
            found = ours(torch.tensor([prompt]))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_a_missing_weight_has_its_name_in_the_file(make: Make) -> None:
    _, directory = make()
    file = directory / "model.safetensors"
    weights = load_file(file)
    del weights["transformer.h.1.attn.c_attn.bias"]
    save_file(weights, file)
    with pytest.raises(CheckpointError) as caught:
        read(directory)
    parts = ("key", "query", "value")
    assert caught.value.problems == [f"missing weight h.1.attn.c_attn.bias[{p}]" for p in parts]


def test_greedy_and_beams_of_the_reference(make: Make) -> None:
    theirs, directory = make()
    ours = read(directory)
    assert greedy_uncached(ours, PROMPTS, NEW) == [generated(theirs, p) for p in PROMPTS]
    generation = ours.generation.__class__(num_beams=4)
    for prompt in PROMPTS[:3]:
        (hypotheses,) = beam_search_uncached(ours, [prompt], NEW, generation=generation)
        assert list(hypotheses[0].tokens) == generated(theirs, prompt, num_beams=4)


@pytest.fixture
def bundle(make: Make, tmp_path: Path) -> Callable[..., tuple[Any, Model]]:
    def bundle(target: str = "cpu", precision: Any = "fp32", **changes: Any) -> tuple[Any, Model]:
        theirs, directory = make(**changes)
        (tmp_path / "neutral").mkdir()
        neutral = export_bundle(read(directory), tmp_path / "neutral", name="gpt2")
        if target == "neutral":
            return theirs, load(tmp_path / "neutral", threads=1)
        (tmp_path / "cpu").mkdir()
        optimize_bundle(neutral, tmp_path / "cpu", target=target, precision=precision)
        return theirs, load(tmp_path / "cpu", threads=1)

    return bundle


@pytest.mark.parametrize("target", ["neutral", "cpu"])
def test_ragged_prompts_in_one_batch(target: str, bundle: Callable[..., tuple[Any, Model]]) -> None:
    theirs, model = bundle(target)
    results = model.generate(PROMPTS, max_new_tokens=NEW)
    found = [[*r.tokens, *([] if r.end_token is None else [r.end_token])] for r in results]
    assert found == [generated(theirs, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("beams", [1, 3])
def test_prompts_join_others(beams: int, bundle: Callable[..., tuple[Any, Model]]) -> None:
    """As outputs end, prompts that wait take their places."""
    theirs, model = bundle()
    results = model.generate(PROMPTS, max_batch_size=2 * beams, max_new_tokens=NEW, num_beams=beams)
    found = [[*r.tokens, *([] if r.end_token is None else [r.end_token])] for r in results]
    assert found == [generated(theirs, prompt, num_beams=beams) for prompt in PROMPTS]


@pytest.mark.parametrize("target", ["neutral", "cpu"])
def test_beams_of_ragged_prompts(target: str, bundle: Callable[..., tuple[Any, Model]]) -> None:
    theirs, model = bundle(target)
    results = model.generate(PROMPTS, max_new_tokens=NEW, num_beams=3)
    found = [[*r.tokens, *([] if r.end_token is None else [r.end_token])] for r in results]
    assert found == [generated(theirs, prompt, num_beams=3) for prompt in PROMPTS]
