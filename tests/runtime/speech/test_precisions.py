"""A speech model in lower precision takes the same features and gives similar logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.optimize.emulation import emulated_bundle
from dragoman.optimize.step_inputs import random_sources
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.decoding.request import as_batch
from dragoman.runtime.format.manifest import Precision

from ...speech_models import noise


@pytest.mark.parametrize(
    "target, precision, allowed",
    [
        ("neutral", "fp16", 0.01),
        ("neutral", "bf16", 0.1),
        ("neutral", "int8", 0.15),
        ("cpu", "int8", 0.3),
        ("cpu", "int4", 0.5),
    ],
)
def test_logits_are_similar_and_features_are_float32(
    target: str,
    precision: Precision,
    allowed: float,
    exported: Callable[[str], tuple[Any, Path]],
    tmp_path: Path,
) -> None:
    _, neutral = exported("english")
    (tmp_path / "made").mkdir()
    bundle = optimize_bundle(
        read_bundle(neutral), tmp_path / "made", target=target, precision=precision
    )
    manifest = bundle.manifest
    assert bundle == read_bundle(tmp_path / "made")
    assert manifest.graphs["encoder"].input("source").dtype == "float32"
    if precision == "bf16":  # processors do not run it
        (tmp_path / "emulated").mkdir()
        bundle = emulated_bundle(bundle, tmp_path / "emulated")
    sources = random_sources(manifest, [1] * 3, np.random.default_rng(1))
    source, mask = as_batch(sources, manifest.model)
    forced = np.random.default_rng(2).integers(0, manifest.model.target_vocab_size, (3, 9))
    expected = load(neutral, threads=1).backend.score(source, mask, forced)
    model = Model(bundle, open_backend(bundle, None, threads=1))
    found = model.backend.score(source, mask, forced)
    # For untrained weights; a wrong scale, axis or order gives about 1.
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error <= allowed
    (result,) = model.generate([noise(1.0, seed=3)], max_new_tokens=5)
    assert result.error is None
