"""Hugging Face models with seeded random weights, and the greedy output of their library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer, pad
from dragoman.runtime import load, read_bundle

transformers: Any = importlib.import_module("transformers")


@pytest.fixture(scope="session")
def varied() -> Callable[..., Any]:
    return varied_model


@torch.no_grad()
def varied_model(model: Any, *, seed: int = 3) -> Any:
    """Set weights with which greedy output depends on the source and on the prefix."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_positions" in name and not parameter.requires_grad:
            continue  # a table of sines
        if parameter.dim() == 1:
            std = 1.0 if "norm" in name and name.endswith("weight") else 0.1
        else:
            std = (3.4 if "q_proj" in name or "k_proj" in name else 1.1) * parameter.shape[
                -1
            ] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    bias = getattr(model, "final_logits_bias", None)
    if bias is not None:
        bias.copy_(torch.randn(bias.shape, generator=generator) * 0.1)
    return model.eval()


@pytest.fixture(scope="session")
def their_greedy() -> Callable[..., list[list[int]]]:
    """Greedy output of `transformers`: the new tokens of each source, up to the end token."""

    def generate(model: Any, sources: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
        source, mask = pad(sources, model.config.pad_token_id)
        generated = model.generate(
            input_ids=source,
            attention_mask=mask.long(),
            num_beams=1,
            do_sample=False,
            **settings,
        )
        end = model.generation_config.eos_token_id
        rows = [row[1:] for row in generated.tolist()]
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    return generate


@pytest.fixture(scope="session")
def runtime_greedy() -> Callable[..., list[list[int]]]:
    """Greedy output of an exported bundle, by ONNX Runtime."""

    def generate(
        model: Transformer,
        directory: Path,
        target: Any,
        sources: Sequence[Sequence[int]],
        max_new_tokens: int | None = None,
    ) -> list[list[int]]:
        neutral = directory / "neutral"
        if not neutral.exists():
            neutral.mkdir()
            export_bundle(model, neutral, name="random")
        bundle = neutral
        if target != "neutral":
            bundle = directory / target
            bundle.mkdir()
            optimize_bundle(read_bundle(neutral), bundle, target=target)
        end = model.config.end_token_id
        with load(bundle, threads=1) as loaded:
            results = loaded.generate(list(sources), max_new_tokens=max_new_tokens)
        return [
            [*result.tokens, end] if result.finish_reason == "end" else list(result.tokens)
            for result in results
        ]

    return generate
