"""The most probable next tokens are selected on the device; logits leave it only if they must."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dragoman.export import export_bundle
from dragoman.onnx_graphs.optional_graphs import candidates_graph
from dragoman.reference_model import GenerationConfig, ModelConfig, Transformer
from dragoman.runtime import Bundle, Model, load, read_bundle
from dragoman.runtime.backends.interface import Candidates, DecodingState
from dragoman.runtime.format.contract import TensorSpec

from ...device_double import DoubleDevice
from ...provider_double import opened
from . import gpu_models
from .conftest import Case
from .gpu_models import ALLOCATING

ROWS = 7


def started(model: Model, width: int = 1) -> DecodingState:
    generator = np.random.default_rng(9)
    source, mask = generator.integers(0, 17, (ROWS, 5)), np.ones((ROWS, 5), np.bool_)
    return model.backend.start(source, mask, np.ones((ROWS, 1), np.int64), 9, width)


def same(found: Candidates, expected: Candidates) -> None:
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-4)


@pytest.mark.parametrize("width", [1, 2])
def test_candidates_are_selected_on_the_device(
    model: Model, ids_model: Model, device: DoubleDevice, width: int
) -> None:
    found, expected = started(model, width), started(ids_model, width)
    for count in (1, 8, 19):
        one, other = found.advance(), expected.advance()
        device.log.clear()
        same(one.candidates(count), other.candidates(count))
        assert [name for name in device.log if "alloc" not in name] == [
            *("execute", "download", "download", "synchronize")
        ]
        assert one.candidates(count).tokens.shape == (ROWS * width, count)
        device.log.clear()
        assert one.choice.tokens.tolist() == other.choice.tokens.tolist()
        assert "download" not in device.log  # it is here already
        for state in (found, expected):
            state.feed(other.candidates(2).tokens[:, 1])
    found.close()
    model.close()
    device.assert_empty()


def test_candidates_of_known_sizes_need_no_memory(model: Model, device: DoubleDevice) -> None:
    state = started(model)
    for step in range(4):
        if step == 2:
            device.log.clear()
        best = state.advance().candidates(2)
        state.feed(best.tokens[:, 1])
    assert (ALLOCATING - {"begin_capture"}).isdisjoint(device.log)
    state.close()


@pytest.mark.parametrize("number", [0, 4])
def test_logits_are_downloaded_where_the_graph_does_not_give_enough(
    ids_case: Case, ids_model: Model, device: DoubleDevice, tmp_path: Path, number: int
) -> None:
    """A bundle may also lack the graph."""
    bundle = with_candidates(read_bundle(ids_case[1]), tmp_path, number)
    model = opened(bundle, device)
    found, expected = started(model), started(ids_model)
    for count, downloads in ((4, 2 if number else 1), (5, 1)):
        one, other = found.advance(), expected.advance()
        device.log.clear()
        same(one.candidates(count), other.candidates(count))
        assert device.log.count("download") == downloads
        for state in (found, expected):
            state.feed(other.choice.tokens)
    found.close()
    model.close()
    device.assert_empty()


def test_as_many_tokens_are_suppressed_as_no_graph_could_select(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The graph leaves them out itself: beams need no logits on the host."""
    config = ModelConfig(
        source_vocab_size=17,
        target_vocab_size=5100,
        encoder_layers=1,
        decoder_layers=1,
        d_model=16,
        num_heads=2,
        d_ff=24,
        max_source_positions=33,
        max_target_positions=gpu_models.CAPACITY,
    )
    torch.manual_seed(3)
    never = GenerationConfig(suppressed_token_ids=tuple(range(40, 5040)))
    directory = tmp_path_factory.mktemp("suppressing")
    export_bundle(Transformer(config, never).eval(), directory, name="suppressing")
    expected = load(directory, threads=1).generate([[3, 4, 5], [6]], num_beams=3)
    engines = gpu_models.engines_of(directory, tmp_path_factory, gpu_models.ENGINES)
    for on_engines in (False, True):
        device = DoubleDevice()
        found = (
            gpu_models.opened(engines, device)
            if on_engines
            else opened(read_bundle(directory), device)
        )
        with found:
            gpu_models.same(found.generate([[3, 4, 5], [6]], num_beams=3), expected)
            graph = found.manifest.graphs["candidates"]
            assert graph.output("candidate_token").shape == ("batch", 32)
            state = started(found)
            best = state.advance()
            device.log.clear()
            assert best.candidates(32).tokens.shape == (ROWS, 32)
            assert device.log.count("download") == 2  # tokens and log-probabilities, no logits
            state.close()


def with_candidates(bundle: Bundle, directory: Path, number: int) -> Bundle:
    """A copy whose graph selects this many; 0: without the graph."""
    copy = directory / "bundle"
    shutil.copytree(bundle.directory, copy)
    graphs = bundle.manifest.model_graphs
    if number:

        def fewer(tensor: TensorSpec) -> TensorSpec:
            candidates = tensor.role.startswith("candidate")
            return dataclasses.replace(tensor, shape=("batch", number)) if candidates else tensor

        graphs["candidates"] = bundle.manifest.graphs["candidates"].map(fewer)
        ir.save(candidates_graph(graphs["candidates"], ()), copy / graphs["candidates"].file)
    return Bundle(copy, dataclasses.replace(bundle.manifest, graphs=graphs))
