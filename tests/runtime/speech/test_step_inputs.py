"""The recorded inputs of a speech model's graphs: one window, and a prompt read token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from dragoman.optimize.step_inputs import random_sources, record_steps
from dragoman.runtime import read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.decoding.request import as_batch


def test_each_step_continues_the_prompt(exported: Callable[[str], tuple[Any, Path]]) -> None:
    bundle = read_bundle(exported("multilingual")[1])
    model, prompt = bundle.manifest.model, bundle.manifest.generation.prompt
    windows = random_sources(bundle.manifest, [0], np.random.default_rng(1))
    inputs = record_steps(bundle, sources=windows)
    source, mask = as_batch(windows, model)
    assert inputs.encoder is not None
    assert np.array_equal(inputs.encoder["source"], source)
    session = onnxruntime.InferenceSession(bundle.graph_path("decoder"))
    backend = open_backend(bundle, None, 1)
    tokens = [model.start_token_id, *prompt]
    for step in range(len(prompt), 15):  # greedily, by scoring the whole prefix anew
        logits = backend.score(source, mask, np.array([tokens]))[0, step].copy()
        logits[list(bundle.manifest.generation.suppressed_token_ids)] = -np.inf
        tokens.append(int(logits.argmax()))
    scored = backend.score(source, mask, np.array([tokens]))
    assert list(inputs.decoder) == [0, 1, 8, 15]
    for step, feed in inputs.decoder.items():
        (logits,) = session.run(["logits"], dict(feed))
        assert np.abs(logits[0, 0] - scored[0, step]).max() < 1e-4
        assert feed["token"].item() == tokens[step]
