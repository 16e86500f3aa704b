"""PyTorch -> ONNX: both graphs, with the names and dynamic axes of the contract."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime.format.manifest import DataType, Role, TensorSpec

from .graphs import OPSET, DecoderStepGraph, EncoderGraph, exporting
from .simplify import simplify

BATCH, SOURCE, QUERY, CAPACITY = Dim("batch"), Dim("source"), Dim("query"), Dim("capacity")


@dataclass(frozen=True)
class ExportedGraph:
    """A graph and the contract's view of its inputs and outputs."""

    model: ir.Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def export_encoder(model: Transformer) -> ExportedGraph:
    """The encoder graph; see `graphs.EncoderGraph`."""
    config = model.config
    layers = range(config.decoder_layers)
    inputs: list[Slot] = [("source", None)]
    arguments: tuple[Tensor, ...]
    axes: tuple[dict[int, Any], ...]
    if config.feature_size is not None:
        arguments = (torch.zeros(2, config.feature_size, config.feature_frames),)
        axes = ({0: BATCH},)
    else:
        arguments = (torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
        axes = ({0: BATCH, 1: SOURCE}, {0: BATCH, 1: SOURCE})
        inputs.append(("source_mask", None))
    return _export(
        EncoderGraph(model),
        model,
        arguments,
        axes,
        inputs=inputs,
        outputs=[(role, i) for i in layers for role in ("cross_key", "cross_value")],
    )


def export_decoder(model: Transformer) -> ExportedGraph:
    """The decoder-step graph; see `graphs.DecoderStepGraph`."""
    config = model.config
    batch, queries, capacity = 2, 3, 7
    # A window of audio is as long as every other.
    speech = config.feature_size is not None
    source = config.max_source_positions if speech else 5
    layers = range(config.decoder_layers)

    def keys_values(length: int) -> list[tuple[Tensor, Tensor]]:
        shape = (batch, config.num_heads, length, config.head_size)
        # A tensor each: the exporter takes inputs that are one tensor for one input.
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in layers]

    source_axes = {} if speech else {1: SOURCE}
    cross_axes = {0: BATCH} if speech else {0: BATCH, 2: SOURCE}
    cache_axes = {0: BATCH, 2: CAPACITY}
    return _export(
        DecoderStepGraph(model),
        model,
        (
            torch.zeros(batch, queries, dtype=torch.long),
            torch.zeros(batch, dtype=torch.long),
            torch.ones(batch, source, dtype=torch.bool),
            keys_values(source),
            keys_values(capacity),
        ),
        (
            {0: BATCH, 1: QUERY},
            {0: BATCH},
            {0: BATCH} | source_axes,
            [(cross_axes, cross_axes)] * len(layers),
            [(cache_axes, cache_axes)] * len(layers),
        ),
        inputs=[
            ("token", None),
            ("position", None),
            ("source_mask", None),
            *((role, i) for i in layers for role in ("cross_key", "cross_value")),
            *((role, i) for i in layers for role in ("past_key", "past_value")),
        ],
        outputs=[
            ("logits", None),
            ("next_token", None),
            ("next_log_probability", None),
            *((role, i) for i in layers for role in ("present_key", "present_value")),
        ],
    )


Slot = tuple[Role, int | None]


def _export(
    graph: nn.Module,
    model: Transformer,
    arguments: tuple[Any, ...],
    dynamic_shapes: tuple[Any, ...],
    *,
    inputs: list[Slot],
    outputs: list[Slot],
) -> ExportedGraph:
    with exporting(model), torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph.eval(),  # the model within it: `exporting` restores its mode
            arguments,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=dynamic_shapes,
            input_names=[_name(slot) for slot in inputs],
            output_names=[_name(slot) for slot in outputs],
            optimize=False,
            verbose=False,
        )
    assert program is not None  # it is None only when exporting to a file
    exported = program.model
    simplify(exported, model)
    axes = _axes(model.config)
    specs = [
        TensorSpec(_name(slot), slot[0], _dtype(slot[0], model.config), axes[slot[0]], slot[1])
        for slot in (*inputs, *outputs)
    ]
    return ExportedGraph(exported, tuple(specs[: len(inputs)]), tuple(specs[len(inputs) :]))


def _name(slot: Slot) -> str:
    role, layer = slot
    return role if layer is None else f"{role}_{layer}"


def _axes(config: ModelConfig) -> dict[Role, tuple[int | str, ...]]:
    """The shape that the contract gives to each role."""
    heads, size = config.num_heads, config.head_size
    speech = config.feature_size is not None
    length = config.max_source_positions if speech else "source"
    of_source: tuple[int | str, ...] = ("batch", heads, length, size)
    of_cache: tuple[int | str, ...] = ("batch", heads, "capacity", size)
    return {
        "source": (
            ("batch", "source")
            if config.feature_size is None
            else ("batch", config.feature_size, config.feature_frames)
        ),
        "source_mask": ("batch", length),
        "cross_key": of_source,
        "cross_value": of_source,
        "token": ("batch", "query"),
        "position": ("batch",),
        "past_key": of_cache,
        "past_value": of_cache,
        "logits": ("batch", "query", config.target_vocab_size),
        "next_token": ("batch",),
        "next_log_probability": ("batch",),
        "present_key": of_cache,
        "present_value": of_cache,
    }


def _dtype(role: Role, config: ModelConfig) -> DataType:
    match role:
        case "source" if config.feature_size is not None:
            return "float32"
        case "source" | "token" | "position" | "next_token":
            return "int64"
        case "source_mask":
            return "bool"
    return "float32"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes on its own workings from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
