"""Three random Whisper models, each beside its bundles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Model, load, read_bundle

from ...speech_models import MODELS, save


@dataclass(frozen=True)
class Case:
    """Hugging Face's model, and ours."""

    theirs: Any
    ours: Model


Exported = Callable[[str], tuple[Any, Path]]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """By name: a model of Hugging Face, and its neutral bundle or, after a hyphen, that for another
    target."""

    @functools.cache
    def export(name: str) -> tuple[Any, Path]:
        model, _, target = name.partition("-")
        if target:
            theirs, neutral = export(model)
            optimized = neutral.with_name(target)
            optimized.mkdir()
            optimize_bundle(read_bundle(neutral), optimized, target="cpu")
            return theirs, optimized
        directory, theirs = tmp_path_factory.mktemp(name), MODELS[name]()
        checkpoint = save(theirs, directory / "checkpoint")
        (directory / "neutral").mkdir()
        read = read_checkpoint(checkpoint)
        export_bundle(read.model, directory / "neutral", name=name, tokenizers=read.tokenizers)
        return theirs, directory / "neutral"

    return export


@pytest.fixture(scope="session", params=["english", "multilingual", "multilingual-cpu"])
def case(request: pytest.FixtureRequest, exported: Exported) -> Case:
    theirs, bundle = exported(request.param)
    return Case(theirs, load(bundle, threads=1))


@pytest.fixture(scope="session")
def english(exported: Exported) -> Case:
    theirs, bundle = exported("english")
    return Case(theirs, load(bundle, threads=1))


@pytest.fixture(scope="session")
def multilingual(exported: Exported) -> Case:
    theirs, bundle = exported("multilingual")
    return Case(theirs, load(bundle, threads=1))
