"""Both backends of a GPU, on doubles of their libraries, give what the processor gives."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.export import export_bundle
from dragoman.reference_model import HeadConfig, ModelConfig, Transformer, make_model
from dragoman.runtime import ClosedModelError, DeviceLostError, Model, UnfinishedError, load
from dragoman.runtime.format.manifest import Profile, Range

from ... import provider_double
from ...device_double import DoubleDevice
from .conftest import Open
from .gpu_models import CAPACITY, ENGINES, engines_of, opened, same, same_numbers

Sources = Callable[..., list[list[int]]]


def first(source: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start token of each row."""
    return np.full((len(source), 1), 1)


def test_encode_and_score_give_the_numbers_of_the_processor(
    model: Model, ids_case: tuple[Transformer, Path], ids_model: Model
) -> None:
    generator = np.random.default_rng(0)
    config = ids_case[0].config
    source = generator.integers(0, config.source_vocab_size, (19, 11))  # more than a batch
    mask = np.arange(11) < generator.integers(1, 12, (19, 1))
    target = generator.integers(0, config.target_vocab_size, (19, CAPACITY))
    same_numbers(model, ids_model, source, mask, target)


def test_finished_rows_leave_on_the_device(model: Model, device: DoubleDevice) -> None:
    generator = np.random.default_rng(5)
    source, mask = generator.integers(0, 17, (13, 9)), np.ones((13, 9), np.bool_)
    whole, part = (model.backend.start(source, mask, first(source), CAPACITY) for _ in range(2))
    kept = np.array([12, 1, 5, 3])
    for _ in range(3):
        np.testing.assert_array_equal(whole.step().tokens, part.step().tokens)
    device.log.clear()
    part.keep(kept)
    assert "copy_2d" in device.log
    assert {"download", "upload", "synchronize", "wait"}.isdisjoint(device.log)
    for _ in range(3):
        np.testing.assert_array_equal(whole.step().tokens[kept], part.step().tokens)
    part.keep(np.array([3, 1]))
    for _ in range(3, CAPACITY - 3):
        np.testing.assert_array_equal(whole.step().tokens[kept[[3, 1]]], part.step().tokens)


def test_each_thread_has_a_workspace(
    model: Model,
    ids_case: tuple[Transformer, Path],
    ids_model: Model,
    random_sources: Sources,
    device: DoubleDevice,
) -> None:
    sources = [random_sources(ids_case[0].config, 5, seed=seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(lambda s: model.generate(s, max_new_tokens=CAPACITY), sources))
    for one, source in zip(found, sources, strict=True):
        same(one, ids_model.generate(source, max_new_tokens=CAPACITY))
    assert 1 <= len(device.streams) <= 3
    model.close()
    device.assert_empty()


def test_a_lost_device_ends_the_call_with_the_finished_results(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    waited: list[str] = []

    def refuse(name: str) -> None:
        waited.extend([name] if name == "wait" else [])
        if len(waited) > 15:
            raise DeviceLostError(f"{name}: an illegal address (cudaErrorIllegalAddress)")

    device.refuse = refuse
    sources = [[3, 4], [5], [6, 7, 8], [9] * 5, [10] * 4, [11]]
    with pytest.raises(UnfinishedError, match="cudaErrorIllegalAddress") as error:
        model.generate(sources, max_new_tokens=CAPACITY, max_batch_size=2)
    finished = error.value.finished
    assert 0 < len(finished) < len(sources)
    device.refuse = lambda name: None
    for index, result in finished.items():
        same([result], ids_model.generate([sources[index]], max_new_tokens=CAPACITY))


def test_an_abandoned_stream_returns_its_workspace(
    model: Model, ids_model: Model, device: DoubleDevice
) -> None:
    tokens = model.stream([3, 4, 5], max_new_tokens=CAPACITY)
    next(tokens)
    del tokens
    same(
        model.generate([[6, 7]], max_new_tokens=CAPACITY),
        ids_model.generate([[6, 7]], max_new_tokens=CAPACITY),
    )
    assert len(device.streams) == 1
    model.close()
    device.assert_empty()


def test_a_closed_model_raises_and_frees_running_batches_when_they_end(
    model: Model, device: DoubleDevice
) -> None:
    backend, tokens = model.backend, model.stream([3, 4, 5], max_new_tokens=CAPACITY)
    with model:
        model.generate([[3]], max_new_tokens=CAPACITY)
        next(tokens)
    assert len(device.streams) == 1
    later: list[Callable[[], Any]] = [
        lambda: model.generate([[3]]),
        lambda: next(tokens),
        lambda: backend.encode(np.array([[3]]), np.array([[True]])),
    ]
    for call in later:
        with pytest.raises(ClosedModelError, match=r"^the model is closed: load it again$"):
            call()
    device.assert_empty()
    backend.close()


def test_a_forgotten_model_frees_its_memory(open_on: Open, device: DoubleDevice) -> None:
    open_on(device).generate([[3]], max_new_tokens=CAPACITY)
    gc.collect()
    device.assert_empty()


SHAPE: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 24,
    "num_heads": 3,
    "d_ff": 40,
    "positions": "learned",
    "max_source_positions": 33,
    "max_target_positions": 33,
    "pad_token_id": 0,
}
ENCODER = SHAPE | {
    "source_vocab_size": 29,
    "target_vocab_size": 0,
    "decoder_layers": 0,
    "max_target_positions": 0,
    "token_types": 2,
    "head": HeadConfig(task="sequence-classification", dense_size=24, labels=("a", "b", "c")),
}
DECODER = SHAPE | {
    "source_vocab_size": 0,
    "target_vocab_size": 29,
    "encoder_layers": 0,
    "max_source_positions": 0,
    "norm_order": "pre",
}
PROMPTS = [[5, 9, 12, 3, 7], [8], [4, 4, 11], [10, 3, 6, 7, 8, 9, 20, 21, 22], [1, 2], [6, 5]]
SOURCES = [[5, 9, 12, 3, 7], [8], [4, 4, 11], list(range(1, 29)), [1, 2], [20, 5]]

Opened = Callable[[dict[str, Any], str], tuple[Model, Model]]


@pytest.fixture
def both(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    device: DoubleDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> Opened:
    """A model on the processor and on a device."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def both(config: dict[str, Any], backend: str) -> tuple[Model, Model]:
        torch.manual_seed(1)
        model = make_model(ModelConfig(**config)).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        (tmp_path / "neutral").mkdir()
        export_bundle(model, tmp_path / "neutral", name="single-stack")
        ours = load(tmp_path / "neutral", threads=1)
        if backend == "provider":
            return ours, provider_double.opened(ours.bundle, device)
        longest = Range(1, 1, 1) if not model.config.has_encoder else Range(1, 16, 33)
        built = dataclasses.replace(
            ENGINES,
            capacity=33 if model.config.has_decoder else 0,
            profiles=(Profile(Range(1, 1, 2), longest), Profile(Range(1, 4, 16), longest)),
            reports=dict.fromkeys(ours.manifest.graphs, ENGINES.reports["encoder"]),
        )
        return ours, opened(engines_of(tmp_path / "neutral", tmp_path_factory, built), device)

    return both


backends = pytest.mark.parametrize("backend", ["engines", "provider"])


@backends
def test_an_encoder_only_model(backend: str, both: Opened) -> None:
    ours, theirs = both(ENCODER, backend)
    for _ in range(2):  # a workspace is used again
        found, expected = theirs.classify(SOURCES), ours.classify(SOURCES)
        assert [r.label for r in found] == [r.label for r in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.labels[0].score == pytest.approx(other.labels[0].score, abs=1e-5)
    source, mask = np.array([[5, 6, 7, 8]]), np.array([[True] * 4])
    types = np.array([[0, 0, 1, 1]])
    for model in (ours, theirs):
        with_types = model.backend.encode(source, mask, types)["class_logits"]
        without = model.backend.encode(source, mask)["class_logits"]
        assert np.abs(with_types - without).max() > 1e-3
    np.testing.assert_allclose(
        theirs.backend.encode(source, mask, types)["class_logits"],
        ours.backend.encode(source, mask, types)["class_logits"],
        atol=1e-5,
    )


@backends
@pytest.mark.parametrize("beams", [1, 3])
def test_ragged_prompts_of_a_decoder_only_model(backend: str, beams: int, both: Opened) -> None:
    ours, theirs = both(DECODER, backend)
    for limit, size in ((1, 8), (9, 8), (9, 2)):
        options: dict[str, Any] = {
            "max_new_tokens": limit,
            "num_beams": beams,
            "max_batch_size": size * beams,
        }
        same(theirs.generate(PROMPTS, **options), ours.generate(PROMPTS, **options))


@backends
def test_scores_of_a_decoder_only_model(backend: str, both: Opened) -> None:
    ours, theirs = both(DECODER, backend)
    pairs = [(prompt, [3, 4, 5]) for prompt in PROMPTS]
    for one, other in zip(theirs.score(pairs), ours.score(pairs), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
