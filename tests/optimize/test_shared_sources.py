"""Decoders whose rows share sources, as beams do: each row is what PyTorch computes for it with the
source repeated, and what the same graph computes then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from dragoman.export import export_bundle
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.reference_model import KeyValueCache, Transformer
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.contract import Change, GraphSpec, Owner
from dragoman.runtime.format.manifest import Precision

from ..speech_models import save, whisper
from .conftest import ODD_HEADS, T5, TIED, Optimize, random_model

Values = dict[str, NDArray[Any]]
CAPACITY = 9
LENGTHS = np.array([6, 1, 3, 5, 2, 6, 4])
"""Tokens of each source."""

shapes = pytest.mark.parametrize(
    ("width", "sources", "queries"),
    [(width, sources, 1) for width in (1, 2, 4, 5) for sources in (1, 2, 7)] + [(3, 2, 4)],
)


class Decoder:
    """A bundle's decoder in ONNX Runtime."""

    def __init__(self, bundle: Bundle) -> None:
        self.graph, self.passes = bundle.manifest.graphs["decoder"], bundle.manifest.passes
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(bundle.graph_path("decoder"), options)

    def __call__(self, values: Values) -> Values:
        names = [tensor.name for tensor in self.graph.outputs]
        return dict(zip(names, self.session.run(names, values), strict=True))


@dataclass
class Case:
    """A model, and its decoders as exported and for the processor."""

    model: Transformer
    neutral: Decoder
    cpu: dict[Precision, Decoder]


@pytest.fixture(scope="module", params=["post-norm", "heads of 12", "relative", "audio"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, optimize: Optimize
) -> Case:
    directory = tmp_path_factory.mktemp("case")
    if request.param == "audio":
        heads: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        theirs = whisper(multilingual=False, seed=3, d_model=32, **heads)
        model = load_hugging_face(save(theirs, directory / "checkpoint"))
    else:
        changes = {"post-norm": TIED, "heads of 12": ODD_HEADS, "relative": T5}
        model = random_model(changes[request.param])
    (directory / "neutral").mkdir()
    export_bundle(model, directory / "neutral", name="random")
    neutral = read_bundle(directory / "neutral")
    precisions: tuple[Precision, ...] = ("fp32", "int8", "int4")
    return Case(model, Decoder(neutral), {p: Decoder(optimize(neutral, p)) for p in precisions})


def test_attention_over_audio_is_computed_row_by_row(case: Case) -> None:
    layers = case.model.config.decoder_layers if case.model.config.feature_size else 0
    for decoder in case.cpu.values():
        records = [r for r in decoder.passes if r.name == "fixed-source-attention"]
        matches = {record.graph: record.matches for record in records}
        assert matches == {"encoder": 0, "decoder": layers}
        assert not any(record.refusals for record in records)


def inputs(graph: GraphSpec, model: Transformer, width: int, sources: int, queries: int) -> Values:
    """Rows at positions of their own; if they have several queries, at the first, since the
    processor's self-attention takes several from there only."""
    random = np.random.default_rng(width * sources)
    sizes = {
        "batch": width * sources,
        "source_batch": sources,
        "source": LENGTHS.max(),
        "query": queries,
        "capacity": CAPACITY,
    }
    position = np.arange(width * sources) * (5 if queries == 1 else 0) % CAPACITY
    values: Values = {}
    for tensor in graph.inputs:
        shape = [sizes[d] if isinstance(d, str) else d for d in tensor.shape]
        value: NDArray[Any] = random.standard_normal(shape)
        match tensor.role:
            case "token":
                value = random.integers(0, model.config.target_vocab_size, shape)
            case "position":
                value = position
            case "source_mask":
                value = np.arange(shape[1]) < LENGTHS[:sources, None]
        if tensor.change is Change.APPENDED:
            value *= (np.arange(CAPACITY) < position[:, None])[:, None, :, None]
        values[tensor.name] = value.astype(tensor.dtype)
    return values


def with_sources_of_their_own(graph: GraphSpec, values: Values, width: int) -> Values:
    """Each source repeated for each of its rows."""
    of_source = {t.name for t in graph.inputs if t.owner in (Owner.ENCODER_ROW, Owner.MASK)}
    return {n: v.repeat(width, 0) if n in of_source else v for n, v in values.items()}


@torch.no_grad()
def by_pytorch(model: Transformer, values: Values) -> Values:
    """Logits and caches."""
    tensors = {name: torch.from_numpy(value.copy()) for name, value in values.items()}

    def layers(prefix: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (tensors[f"{prefix}_key_{i}"], tensors[f"{prefix}_value_{i}"])
            for i in range(model.config.decoder_layers)
        ]

    cache = KeyValueCache(model.config, len(values["token"]), CAPACITY)
    cache.position, cache.layers = tensors["position"], layers("past")
    logits = model.decode(
        tensors["token"], cache.position, tensors["source_mask"], layers("cross"), cache
    )
    found = {"logits": logits.numpy()}
    for i, (key, value) in enumerate(cache.layers):
        found |= {f"present_key_{i}": key.numpy(), f"present_value_{i}": value.numpy()}
    return found


@shapes
def test_rows_are_those_of_pytorch(case: Case, width: int, sources: int, queries: int) -> None:
    for decoder in (case.neutral, case.cpu["fp32"]):
        shared = inputs(decoder.graph, case.model, width, sources, queries)
        found = decoder(shared)
        own = with_sources_of_their_own(decoder.graph, shared, width)
        for name, expected in by_pytorch(case.model, own).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@shapes
def test_rows_are_those_of_the_graph_with_sources_repeated(
    case: Case, precision: Precision, width: int, sources: int, queries: int
) -> None:
    decoder = case.cpu[precision]
    shared = inputs(decoder.graph, case.model, width, sources, queries)
    found = decoder(shared)
    own = with_sources_of_their_own(decoder.graph, shared, width)
    for name, expected in decoder(own).items():
        if expected.dtype == np.float32:
            difference = np.abs(found[name] - expected).max() / np.abs(expected).max()
            # Mostly 1e-7; more where an activation is rounded to another of its 255 steps.
            assert difference < 0.05, name
