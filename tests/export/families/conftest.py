"""Hugging Face models with seeded random weights, and the greedy output of their library."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import Transformer, pad
from dragoman.runtime import load, read_bundle

from ...random_weights import randomize_hugging_face
from .beam_cases import Subject, make_subject
from .sentence_directories import Write, save_bert, write_directory

transformers: Any = importlib.import_module("transformers")


@pytest.fixture(scope="session")
def varied() -> Callable[..., Any]:
    return randomize_hugging_face


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
        with load(bundle, threads=1) as loaded:
            results = loaded.generate(list(sources), max_new_tokens=max_new_tokens)
        return [
            [*result.tokens, *([] if result.end_token is None else [result.end_token])]
            for result in results
        ]

    return generate


@pytest.fixture(scope="session")
def beam_subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """By its name in `beam_cases.MODELS`, made once."""
    return cache(lambda name: make_subject(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of the directories of sentence-transformers."""
    directory: Path = tmp_path_factory.mktemp("bert")
    save_bert(directory)
    return directory


@pytest.fixture
def write(bert: Path, tmp_path: Path) -> Write:
    """A directory of sentence-transformers with these modules: kind -> folder, "" is the directory
    itself; and settings as in `write_directory`."""

    def write(
        pooling: dict[str, Any] | None = None, dense: dict[str, Any] | None = None, **folders: str
    ) -> Path:
        return write_directory(tmp_path / "sentences", bert, folders, pooling, dense)

    return write
