"""Three random Whisper models, each beside its bundles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import TokenizerFiles, export_bundle
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.optimize.bundle import optimize_bundle
from dragoman.runtime import Model, load, read_bundle

from ...speech_models import MODELS, save


@dataclass(frozen=True)
class Case:
    """Hugging Face's model, and ours."""

    theirs: Any
    ours: Model


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """By name: a model of Hugging Face, and its neutral bundle."""
    made = {}
    for name, make in MODELS.items():
        directory, theirs = tmp_path_factory.mktemp(name), make()
        checkpoint = save(theirs, directory / "checkpoint")
        tokenizer = checkpoint / "tokenizer.json"
        (directory / "neutral").mkdir()
        export_bundle(
            load_hugging_face(checkpoint),
            directory / "neutral",
            name=name,
            tokenizers=TokenizerFiles(tokenizer, tokenizer),
        )
        made[name] = (theirs, directory / "neutral")
    return made


@pytest.fixture(
    scope="session", params=["english", "multilingual", "distilled", "multilingual-cpu"]
)
def case(request: pytest.FixtureRequest, exported: dict[str, tuple[Any, Path]]) -> Case:
    name, _, target = request.param.partition("-")
    theirs, place = exported[name]
    if target:
        optimized = place.with_name(target)
        optimized.mkdir()
        optimize_bundle(read_bundle(place), optimized, target="cpu")
        place = optimized
    return Case(theirs, load(place, threads=1))


@pytest.fixture(scope="session")
def english(exported: dict[str, tuple[Any, Path]]) -> Case:
    theirs, place = exported["english"]
    return Case(theirs, load(place, threads=1))


@pytest.fixture(scope="session")
def multilingual(exported: dict[str, tuple[Any, Path]]) -> Case:
    theirs, place = exported["multilingual"]
    return Case(theirs, load(place, threads=1))
