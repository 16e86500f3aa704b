"""The checks of speech encode a window once for all that is computed from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.optimize.checking import encoded_once
from dragoman.optimize.checking.encoded_once import EncodedWindows, encode_together, encoding_once
from dragoman.optimize.precision.calibration import WINDOWS, calibration_batches
from dragoman.optimize.running import InMemoryBackend
from dragoman.reference_model import Transformer
from dragoman.runtime import Model, load
from dragoman.verification.inputs.parity_inputs import random_inputs
from dragoman.verification.numerics.batches import compare_batches
from dragoman.verification.numerics.graphs import InFloat64
from dragoman.verification.numerics.probes import short_probes
from dragoman.verification.oracle import (
    encoding_anew,
    oracle_for,
    oracle_outputs,
    oracle_pass,
    rounded_oracle,
)
from dragoman.verification.tolerances import Slack

from ..speech_models import save, whisper


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Model]:
    directory = tmp_path_factory.mktemp("speech")
    save(whisper(multilingual=False), directory / "checkpoint")
    reference = read_checkpoint(directory / "checkpoint").model
    assert isinstance(reference, Transformer)
    (directory / "bundle").mkdir()
    export_bundle(reference, directory / "bundle", name="speech")
    return reference, load(directory / "bundle", threads=1)


def windows(reference: Transformer, count: int) -> tuple[Any, Any]:
    config = reference.config
    shape = (count, config.feature_size or 0, config.feature_frames)
    features = np.random.default_rng(count).standard_normal(shape).astype(np.float32)
    return features, np.ones((count, config.max_source_positions), bool)


def test_outputs_are_those_of_the_backend(speech: tuple[Transformer, Model]) -> None:
    reference, model = speech
    once, read = encoding_once(model), np.array([[3, 9, 4]] * 2)
    for count in (1, 2):  # of two, each is encoded by itself, which may round otherwise
        source, mask = windows(reference, count)
        scored = once.backend.score(source, mask, read[:count])
        expected = model.backend.score(source, mask, read[:count])
        np.testing.assert_allclose(scored, expected, rtol=0, atol=0 if count == 1 else 1e-5)
        stepped, expected = (
            m.backend.start(source, mask, read[:count, :1], 6, 2).advance().logits
            for m in (once, model)
        )
        np.testing.assert_allclose(stepped, expected, rtol=0, atol=0 if count == 1 else 1e-5)
    assert once.backend.limits == model.backend.limits


def test_a_window_is_encoded_once(
    speech: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = speech
    encode, encoded = model.backend.encode, list[int]()

    def counted(source: Any, *rest: Any) -> Any:
        encoded.append(len(source))
        return encode(source, *rest)

    monkeypatch.setattr(model.backend, "encode", counted)
    once, read = encoding_once(model).backend, np.array([[3, 9]])
    first, mask = windows(reference, 1)
    other = first + 1
    for source in (first, first.copy(), other, first):
        once.score(source, mask, read)
        once.start(source, mask, read, 4)
    assert encoded == [1, 1]
    both = np.concatenate([first, other]), np.concatenate([mask, mask]), read.repeat(2, 0)
    once.score(*both)
    assert encoded == [1, 1]
    whole = encoding_once(model)
    encode_together(whole, *both[:2])
    assert encoded == [1, 1, 2]
    for _ in range(2):
        encode_together(whole, first, mask)
    assert encoded == [1, 1, 2, 1]


def test_a_calibration_encodes_random_windows_once(
    speech: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = speech
    encode, start = InMemoryBackend.encode, InMemoryBackend.start
    encoded, started = list[int](), list[bool]()

    def encodes(self: InMemoryBackend, source: Any, *rest: Any) -> Any:
        encoded.append(len(source))
        return encode(self, source, *rest)

    def starts(self: InMemoryBackend, source: Any, *rest: Any, **options: Any) -> Any:
        started.append(isinstance(source, dict))
        return start(self, source, *rest, **options)

    monkeypatch.setattr(InMemoryBackend, "encode", encodes)
    monkeypatch.setattr(InMemoryBackend, "start", starts)
    found = calibration_batches(model.bundle)
    assert encoded == [1] * WINDOWS
    assert started
    assert all(started)
    assert sum(len(batch.rows) for batch in found["encoder"]) == WINDOWS


def test_a_fault_in_batches_alone_is_found(
    speech: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows that are encoded one by one hide it from all other checks."""
    reference, model = speech
    encode = model.backend.encode

    def changed(source: Any, *rest: Any) -> Any:
        found = {name: np.array(values) for name, values in encode(source, *rest).items()}
        if len(source) > 1:
            found["cross_value_0"][-1] *= 2
        return found

    probes = short_probes(reference, random_inputs(reference, 2).sources)
    slack = Slack(None, 1e-3, 1e-3)
    once = encoding_once(model)
    assert compare_batches(once, probes, 2, slack, promised=False).passed
    monkeypatch.setattr(model.backend, "encode", changed)
    found = compare_batches(encoding_once(model), probes, 2, slack, promised=False)
    assert not found.passed and "cross_value_0 differ by" in found.problem


def test_the_oracle_encodes_a_window_once(
    speech: tuple[Transformer, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, model = speech
    forward, encoded = reference.encoder.forward, list[torch.dtype]()

    def counted(source: torch.Tensor, mask: torch.Tensor) -> Any:
        encoded.append(source.dtype)
        return forward(source, mask)

    monkeypatch.setattr(reference.encoder, "forward", counted)
    source, mask = windows(reference, 1)
    source += 3  # of no other test
    oracle, _ = oracle_for(reference, model.manifest)
    both = [oracle_pass(oracle, source, mask, np.array([[3, t]]))[1] for t in (9, 4)]
    assert encoded == [torch.float32] and not np.array_equal(both[0], both[1])
    oracle_outputs(oracle, [source[0]], 4)  # decoding encodes nothing, nor does a copy
    oracle_pass(oracle_for(reference, model.manifest)[0], source, mask, np.array([[3, 9]]))
    assert len(encoded) == 1
    oracle_pass(oracle, source * 2, mask, np.array([[3, 9]]))
    assert len(encoded) == 2
    with InFloat64():
        oracle_pass(oracle, source.astype(np.float64), mask, np.array([[3, 9]]))
    assert encoded[2:] == [torch.float64]
    with encoding_anew(oracle):  # what observes the encoder sees it
        oracle_pass(oracle, source, mask, np.array([[3, 9]]))
    assert len(encoded) == 4
    several = np.concatenate([source, source + 1, source * 2])
    oracle_pass(oracle, several, mask.repeat(3, 0), np.array([[3, 9]] * 3))
    assert len(encoded) == 5


def test_a_rounded_oracle_encodes_by_itself(speech: tuple[Transformer, Model]) -> None:
    reference, model = speech
    oracle, _ = oracle_for(reference, model.manifest)
    source, mask = windows(reference, 1)
    exact, _ = oracle_pass(oracle, source, mask, np.array([[3, 9]]))
    rounded = rounded_oracle(oracle, dataclasses.replace(model.manifest, precision="int8"))
    found, _ = oracle_pass(rounded, source, mask, np.array([[3, 9]]))
    assert not torch.equal(found[0][0], exact[0][0])
    assert isinstance(rounded, Transformer)
    own = rounded.encode(torch.from_numpy(source), torch.from_numpy(mask))
    assert torch.equal(own[0][0], found[0][0])
    again, _ = oracle_pass(oracle, source, mask, np.array([[3, 9]]))
    assert torch.equal(again[0][0], exact[0][0])


def test_few_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last window always; of earlier ones, those that were used last."""
    monkeypatch.setattr(encoded_once, "MOST_BYTES", 100)
    windows, computed = EncodedWindows(), list[int]()
    mask = np.ones((1, 1), bool)

    def of(number: int, size: int) -> None:
        def encode(source: Any, mask: Any) -> dict[str, Any]:
            computed.append(number)
            return {"x": np.zeros(size, np.int8)}

        windows.of(np.full((1, 1), number), mask, encode)

    for number, size in ((1, 40), (2, 40), (1, 40), (3, 40), (1, 40), (2, 40), (4, 900), (4, 900)):
        of(number, size)
    assert computed == [1, 2, 3, 2, 4]


def test_models_of_text_are_left_as_they_are(bundle: Model) -> None:
    assert encoding_once(bundle) is bundle
    source = np.array([[3, 4]])
    assert encode_together(bundle, source, np.ones((1, 2), bool)) is source
