"""Calibration data: inputs of graphs, recorded while they run, and statistics of product inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import load_graph
from dragoman.runtime.backends.rows import unwritten
from dragoman.runtime.decoding.request import EncoderInput, as_batch, batches, pad
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec, Owner, Role
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE
from dragoman.runtime.model import Model
from dragoman.runtime.speech.prompts import greedy_options

from ..checking.encoded_once import encoding_once
from ..graph_values import is_weight, producer
from ..running import InMemoryBackend, Runner, Samples, only_outputs
from ..step_inputs import random_sources

SOURCES = 96
WINDOWS = 4
LONGEST = 32
"""The number of random sources, or of windows for speech models, without calibration data, and the
most tokens of each. Outputs are limited to as many tokens."""
MOST_PRODUCTS, FEWEST = 4e11, 8
"""Products that random sources and as many outputs may take, seconds on two cores, and their least
number."""

MOST = 512
"""Maximum number of decoded sources; more take memory and do not change the result."""


class CalibrationBatch(NamedTuple):
    """A batch of inputs of a graph."""

    samples: Samples
    rows: NDArray[np.bool_]
    """Bool [B, T], False at padding."""
    random: bool = False
    """Whether the sources are random, so that the ranges of others may differ."""


def calibration_batches(
    bundle: Bundle,
    sources: Sequence[EncoderInput] | None = None,
    types: Sequence[Sequence[int]] | None = None,
) -> dict[str, list[CalibrationBatch]]:
    """Decode sources and return the inputs of each graph, batch by batch.

    Each batch of a decoder holds all target positions at once.

    Args:
        sources: many are thinned out evenly; None: random sources
        types: token types for an encoder-only model; None: all 0
    """
    manifest, model = bundle.manifest, bundle.manifest.model
    random = sources is None
    available = _random(bundle) if sources is None else sources
    if not available:
        raise DragomanError("calibration: expected at least one source, found none")
    count = len(available)
    kept: list[int] = np.linspace(0, count - 1, min(count, MOST)).astype(int).tolist()
    chosen = [available[i] for i in kept]
    graphs = {name: load_graph(bundle.graph_path(name)) for name in manifest.model_graphs}
    running = Model(bundle, InMemoryBackend(bundle, graphs, None))
    if random:  # few windows, which are remembered
        running = encoding_once(running)
    targets = _targets(running, chosen) if model.has_decoder else None
    observed: dict[str, list[CalibrationBatch]] = {name: [] for name in manifest.model_graphs}
    lengths = [model.max_source_positions if model.takes_audio else len(s) for s in chosen]
    for batch in batches(lengths, max_batch_size=32, max_batch_tokens=512):
        by_role: dict[Role, NDArray[Any]] = {}
        if model.has_encoder:
            source, mask = as_batch([chosen[i] for i in batch], model)
            by_role |= {"source": source, "source_mask": mask, "token_type": np.zeros_like(source)}
            if types is not None:
                by_role["token_type"], _ = pad([types[kept[i]] for i in batch], 0)
            encoder = manifest.graphs["encoder"]
            observed["encoder"].append(CalibrationBatch(_named(encoder, by_role), mask, random))
        if targets is not None:
            # The encoder of an encoder-only model is not run: no graph reads its outputs.
            encoded = running.backend.encode(source, mask) if model.has_encoder else {}
            tokens, written = pad([targets[i] for i in batch], model.pad_token_id)
            positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
            by_role |= {"token": tokens, "read": positions}
            by_role["position"] = np.zeros(len(batch), np.int64)
            decoder = manifest.graphs["decoder"]
            caches = {
                tensor.name: unwritten(tensor, *tokens.shape)
                for tensor in decoder.inputs
                if tensor.owner is Owner.DECODER_ROW
            }
            samples = _named(decoder, by_role) | caches | encoded
            observed["decoder"].append(CalibrationBatch(samples, written, random))
    return observed


def _targets(model: Model, sources: Sequence[EncoderInput]) -> list[list[int]]:
    manifest, spec = model.manifest, model.manifest.model
    limit = min(LONGEST, manifest.default_max_new_tokens)
    results = model.generate(sources, greedy_options(manifest), max_new_tokens=limit)
    if not spec.has_encoder:
        return [
            [*map(int, source), *result.tokens][: spec.max_target_positions]
            for source, result in zip(sources, results, strict=True)
        ]
    prompt = [spec.start_token_id, *manifest.generation.prompt]
    return [[*prompt, *result.tokens][:limit] for result in results]


def _random(bundle: Bundle) -> Sequence[EncoderInput]:
    generator = np.random.default_rng(0)
    manifest, spec = bundle.manifest, bundle.manifest.model
    weights = bundle.path(WEIGHTS_FILE).stat().st_size // 4
    positions = spec.max_source_positions if spec.has_encoder else spec.max_target_positions
    longest = min(LONGEST, positions if spec.has_encoder else positions // 2)
    speech = spec.takes_audio
    positions = spec.max_source_positions if speech else 2 * LONGEST
    affordable = int(MOST_PRODUCTS / max(1, weights * positions))
    count = max(1 if speech else FEWEST, min(WINDOWS if speech else SOURCES, affordable))
    lengths = generator.integers(1, max(1, longest) + 1, count).tolist()
    return random_sources(manifest, lengths, generator)


def _named(spec: GraphSpec, by_role: dict[Role, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {t.name: by_role[t.role] for t in spec.inputs if t.role in by_role}


ROWS = 512
"""Number of input rows to keep of each product, to measure errors on."""

FEW = 8
"""Of fewer different rows, moments say too little about other inputs to compensate errors on them:
the products of others would be up to nine times as far off as plain rounding makes them."""
SAME = 1e-5
"""Relative difference of rows that differ by rounding only."""


class ValueRange(NamedTuple):
    """A range of numbers that includes 0."""

    low: float
    high: float

    def joined(self, other: ValueRange) -> ValueRange:
        """Return the range of the numbers of both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))


@dataclass
class InputStatistics:
    """Statistics of a value [..., K]."""

    rows: NDArray[np.float32]
    """Some of the rows [R, K], from all batches."""
    finite: bool
    """Whether no observed number is NaN or infinite."""
    nonnegative: bool
    """Whether all numbers are nonnegative for any inputs of the graph."""
    moments: NDArray[np.float32] | None = None
    """X^T x [K, K] over all rows x; None for random sources, whose directions are not those of
    others: errors compensated on them grew on others as often as they shrank."""
    range: ValueRange | None = None
    """The range of all numbers; None for random sources, whose range is not representative."""

    @property
    def usable_moments(self) -> NDArray[np.float32] | None:
        """The moments, if they are finite and of enough different rows to hold for other inputs.

        A decoder's first layer that gives one token always reads the start token, for example.
        """
        if self.moments is None or not self.finite:
            return None
        direction = np.random.default_rng(0).standard_normal(self.rows.shape[1])
        places = np.sort(self.rows @ direction)
        size = float(np.abs(places).max(initial=0))
        return self.moments if int((np.diff(places) > SAME * size).sum()) + 1 >= FEW else None

    def joined(self, other: InputStatistics) -> InputStatistics:
        """Return the statistics of both."""
        range_ = self.range
        if range_ is not None and other.range is not None:
            range_ = range_.joined(other.range)
        rows, finite = np.concatenate([self.rows, other.rows]), self.finite and other.finite
        moments = self.moments
        if moments is not None and other.moments is not None:
            moments = np.add(moments, other.moments, out=moments)
        nonnegative = self.nonnegative and other.nonnegative
        return InputStatistics(rows, finite, nonnegative, moments, range_)


@dataclass
class Calibration:
    """The statistics of the inputs of products, by name of the value."""

    inputs: dict[str, InputStatistics] = field(default_factory=dict)

    def of(self, value: ir.Value) -> InputStatistics | None:
        """Return the statistics of a value; None if it was not observed."""
        return self.inputs.get(value.name or "")

    def of_all(self, values: Iterable[ir.Value]) -> InputStatistics | None:
        """Return the statistics of values together; None if none was observed."""
        found = [known for value in dict.fromkeys(values) if (known := self.of(value)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        together = replace(found[0])
        if together.moments is not None:
            together.moments = together.moments.copy()  # `joined` adds to them
        for other in found[1:]:
            together = together.joined(other)
        return together


def calibrate(model: ir.Model, batches: Sequence[CalibrationBatch]) -> Calibration:
    """Run a graph on batches and observe the inputs of its products, without padding."""
    inputs: dict[str, ir.Value] = {}
    for node in model.graph:
        if node.op_type != "MatMul":
            continue
        x, weight = node.inputs[:2]
        transpose = producer(weight, "Transpose")
        multiplied = is_weight(weight if transpose is None else transpose.inputs[0], 2)
        if multiplied and x is not None and x.name is not None and x.producer() is not None:
            inputs[x.name] = x
    names, result = sorted(inputs), Calibration()
    if not names:
        return result
    runner = Runner(only_outputs(model, names), threads=None)
    for batch in batches:
        outputs = runner.run(batch.samples)
        for name in names:
            values = outputs[name].astype(np.float32)
            rows = values[batch.rows] if values.shape[:2] == batch.rows.shape else values
            rows = rows.reshape(-1, rows.shape[-1])
            nonnegative = producer(inputs[name], "Relu") is not None
            found = _observed(rows, ROWS // len(batches) + 1, nonnegative, batch.random)
            known = result.inputs.get(name)
            result.inputs[name] = found if known is None else known.joined(found)
    return result


def _observed(
    rows: NDArray[np.float32], kept: int, nonnegative: bool, random: bool
) -> InputStatistics:
    some = rows[:: max(1, len(rows) // kept)].copy()
    finite = bool(np.isfinite(rows).all())
    if random:
        return InputStatistics(some, finite, nonnegative)
    found = ValueRange(float(rows.min(initial=0)), float(rows.max(initial=0)))
    return InputStatistics(some, finite, nonnegative, rows.T @ rows, found)
