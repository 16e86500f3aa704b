"""PyTorch -> ONNX: neutral graphs with the names and dynamic axes of the contract.

Weights get the names of the checkpoint. `nn.Linear` keeps [out, in] and exports a Transpose before
each MatMul; weights without other uses are stored as [in, out] instead, under the same name.
Redundant nodes are removed; weights are not folded. A breach of the contract is a bug in the
exporter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.convenience import replace_nodes_and_values
from onnx_ir.tensor_adapters import TorchTensor
from onnxscript import opset23 as op
from onnxscript import optimizer
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.onnx import OnnxExporterError

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import ORIGIN
from dragoman.progress import quiet
from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    GenerationConfig,
    LanguageModel,
    ModelConfig,
    ReferenceModel,
)
from dragoman.runtime.format.contract import (
    CONTRACTS,
    Change,
    GraphName,
    GraphSpec,
    Owner,
    TensorSpec,
)
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.neutral_graphs import kind_of, neutral_graph
from dragoman.settings.generation_settings import GenerationSettings
from dragoman.settings.head import Head
from dragoman.settings.speech import AudioFeatures, SpeechTokens

from .graphs import (
    OPSET,
    RESHAPE,
    SCRATCH_DOMAIN,
    STATES,
    DecoderStepGraph,
    EncoderGraph,
    EncoderModelGraph,
    LanguageModelStepGraph,
    exporting,
)

GRAPH_FILES: dict[GraphName, str] = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}

TRACED_SIZES = {"batch": 4, "source_batch": 2, "source": 5, "query": 3, "read": 6, "capacity": 7}
"""Sizes of the dynamic axes while a graph is traced. They are distinct and greater than 1, so that
none is specialized to a constant. There are several rows for each source."""


@dataclass(frozen=True)
class ExportedGraph:
    """A graph, and its specification in the contract."""

    model: ir.Model
    spec: GraphSpec


def graph_names(model: ReferenceModel) -> list[GraphName]:
    """Return the names of the graphs that a model is exported to."""
    return [name for name in GRAPH_FILES if name in CONTRACTS[kind_of(model_spec(model.config))]]


def graph_spec(model: ReferenceModel, name: GraphName) -> GraphSpec:
    """Return the specification of a graph of this model in the contract."""
    config = model.config
    spec, audio = model_spec(config), audio_features(config)
    return neutral_graph(name, GRAPH_FILES[name], spec, audio, head(config))


def export_graph(model: ReferenceModel, name: GraphName) -> ExportedGraph:
    """Export a graph of `graph_names`, with the names, axes and types of the contract."""
    spec = graph_spec(model, name)
    graph = _module(model, name)
    arguments = _arguments([_example(tensor) for tensor in spec.inputs], spec)
    axes: list[Any] = [  # one less than 2 would be another case
        {
            n: Dim(d, min=min(3, TRACED_SIZES[d]))
            for n, d in enumerate(tensor.shape)
            if isinstance(d, str)
        }
        for tensor in spec.inputs
    ]
    shapes = _arguments(axes, spec)
    with (
        exporting(model),
        torch.no_grad(),
        quiet("torch.onnx", "onnx_ir"),
        warnings.catch_warnings(action="ignore"),
        _no_garbage_collection(),
    ):
        program = torch.export.export(
            graph.eval(),  # includes the model, whose mode `exporting` restores
            arguments,
            dynamic_shapes=shapes,
        )
        exported = _translated(program, shapes, spec)
        _simplify(exported, model)
    return ExportedGraph(exported, spec)


def _translated(program: ExportedProgram, shapes: tuple[Any, ...], spec: GraphSpec) -> ir.Model:
    from onnxscript.function_libs.torch_lib.ops.core import aten_reshape  # takes a second

    # Another trace, to decompose operators, would take as long as all else.
    translate = partial(
        torch.onnx.export,
        program,
        dynamo=True,
        opset_version=OPSET,
        custom_translation_table={torch.ops.aten.to.dtype: _cast, RESHAPE.default: aten_reshape},
        dynamic_shapes=shapes,  # for the names of axes
        input_names=[tensor.name for tensor in spec.inputs],
        output_names=[tensor.name for tensor in spec.outputs],
        optimize=False,
        verbose=False,
    )
    vars(program)["run_decompositions"] = lambda table: program
    try:
        exported = translate()
    except OnnxExporterError:  # an operator is translated in parts only
        del vars(program)["run_decompositions"]
        exported = translate()
    assert exported is not None  # None only when exporting to a file
    return exported.model


def _cast(self: Any, dtype: int) -> Any:
    return op.Cast(self, to=dtype)


def _module(model: ReferenceModel, name: GraphName) -> nn.Module:
    if isinstance(model, EncoderModel):
        return EncoderModelGraph(model)
    if isinstance(model, LanguageModel):
        return LanguageModelStepGraph(model)
    return EncoderGraph(model) if name == "encoder" else DecoderStepGraph(model)


def _example(tensor: TensorSpec) -> Tensor:
    """Return a tensor to trace with; the exporter merges inputs that are the same tensor."""
    shape = [TRACED_SIZES[d] if isinstance(d, str) else d for d in tensor.shape]
    fill = torch.ones if tensor.dtype == "bool" else torch.zeros
    return fill(shape, dtype=getattr(torch, tensor.dtype))


def _arguments(values: list[Any], spec: GraphSpec) -> tuple[Any, ...]:
    """Arrange the values of a graph's inputs as the arguments of its module, layers as lists."""
    single: list[Any] = []
    lists: dict[Owner, dict[int, list[Any]]] = {}
    for value, tensor in zip(values, spec.inputs, strict=True):
        if tensor.layer is None:
            single.append(value)
        else:
            lists.setdefault(tensor.owner, {}).setdefault(tensor.layer, []).append(value)
    for layers in lists.values():
        single.append([tuple(own) if len(own) > 1 else own[0] for own in layers.values()])
    return tuple(single)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes a quarter of the time of tracing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _simplify(graph: ir.Model, model: nn.Module) -> None:
    _name_weights(graph, model)
    _transpose_weights(graph)
    names = {name for name, _ in _tensors(model)}
    inputs, count = graph.graph.inputs, len(graph.graph.inputs)
    # As inputs, weights are not folded into others, nor merged with equal ones.
    inputs.extend(v for v in graph.graph.initializers.values() if v.name in names)
    optimizer.optimize_ir(graph)
    del inputs[count:]
    spell_out_states(graph)
    graph.graph.metadata_props.clear()
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.metadata_props.clear()
    for node in graph.graph:
        for name in node.metadata_props.keys() - {ORIGIN}:
            del node.metadata_props[name]


def _name_weights(graph: ir.Model, model: nn.Module) -> None:
    """Give every weight its name in the model, and a tied weight the first of its names."""
    names = {tensor.data_ptr(): name for name, tensor in reversed(_tensors(model))}
    for value in list(graph.graph.initializers.values()):
        raw = getattr(value.const_value, "raw", None)
        if raw is not None and raw.data_ptr() in names:
            value.name = names[raw.data_ptr()]


def _transpose_weights(graph: ir.Model) -> None:
    """Replace Transpose(weight) by the transposed weight if nothing else uses the weight."""
    for value in list(graph.graph.initializers.values()):
        users = [usage.node for usage in value.uses()]
        if not users or any(node.op_type != "Transpose" for node in users):
            continue
        assert isinstance(value.const_value, ir.TensorProtocol) and value.name is not None
        transposed = TorchTensor(value.const_value.raw.t(), name=value.name)
        value.const_value = transposed
        value.shape = transposed.shape
        for node in users:
            node.outputs[0].replace_all_uses_with(value)
            graph.graph.remove(node, safe=True)


def spell_out_states(graph: ir.Model) -> None:
    """Replace `graphs.STATES` by ONNX `Scan`, in place: c_t = f_t * c_(t-1) + u_t."""
    for node in list(graph.graph):
        if (node.domain, node.op_type) != (SCRATCH_DOMAIN, STATES):
            continue
        state, forget, update = node.inputs
        assert state is not None and forget is not None and update is not None
        own = [
            ir.Value(name=name, shape=state.shape, type=state.type)
            for name in ("state", "forget", "update")
        ]
        kept = ir.node("Mul", [own[1], own[0]])
        moved = ir.node("Add", [kept.outputs[0], own[2]])
        shown = ir.node("Identity", moved.outputs)
        for name, value in zip(("kept", "present", "output"), (kept, moved, shown), strict=True):
            value.outputs[0].name = name
            value.outputs[0].shape, value.outputs[0].type = state.shape, state.type
        outputs = [moved.outputs[0], shown.outputs[0]]
        body = ir.Graph(own, outputs, nodes=[kept, moved, shown], name="step")
        scan = ir.Node(
            "",
            "Scan",
            [state, forget, update],
            [
                ir.AttrGraph("body", body),
                ir.AttrInt64("num_scan_inputs", 2),
                ir.AttrInt64s("scan_input_axes", [1, 1]),
                ir.AttrInt64s("scan_output_axes", [1]),
            ],
            num_outputs=2,
            name=node.name,
            metadata_props=dict(node.metadata_props),
        )
        replace_nodes_and_values(graph.graph, node, [node], [scan], node.outputs, scan.outputs)
    graph.opset_imports.pop(SCRATCH_DOMAIN, None)


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


class ContractError(DragomanError):
    """An exported graph breaks the contract; lists every breach."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__(f"the exported {name} graph breaks the contract", problems)


def check_graph(exported: ExportedGraph, name: str) -> None:
    """Check the operators, inputs, outputs and caches of a graph.

    Raises:
        ContractError: the graph has an operator outside the default domain, another opset, an input
            or output that is unused or not as specified, or a cache that is not updated in place.
    """
    model = exported.model
    problems = [
        f"node {node.name} is {node.domain}::{node.op_type}, outside the default domain"
        for node in model.graph.all_nodes()
        if node.domain not in ("", "ai.onnx")
    ]
    if model.opset_imports.get("") != OPSET:
        problems.append(f"expected opset {OPSET}, found {dict(model.opset_imports)}")
    if len(model.functions):
        problems.append(f"expected no local functions, found {list(model.functions)}")
    sides = (
        ("input", model.graph.inputs, exported.spec.inputs),
        ("output", model.graph.outputs, exported.spec.outputs),
    )
    wrong_counts = [
        f"expected {len(specs)} {side}s, found {len(values)}"
        for side, values, specs in sides
        if len(values) != len(specs)
    ]
    if wrong_counts:
        raise ContractError(name, problems + wrong_counts)
    for side, values, specs in sides:
        for value, spec in zip(values, specs, strict=True):
            problems += _differences(value, spec.name, spec.shape)
            if side == "input" and not value.uses():
                problems.append(f"input {value.name} is not used")
            if side == "output" and value.producer() is None:
                problems.append(f"output {value.name} is not computed")
    problems += _memory_not_in_place(exported)
    if problems:
        raise ContractError(name, problems)


def check_file(path: Path, name: str) -> None:
    """Run `onnx.checker` with full shape inference on the written file."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ContractError(name, [f"onnx.checker: {error}"]) from error


def _differences(value: ir.Value, name: str, shape: tuple[int | str, ...]) -> list[str]:
    problems = []
    if value.name != name:
        problems.append(f"expected name {name}, found {value.name}")
    if value.shape is None:
        return [*problems, f"{name} has no shape"]
    found = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    if found != shape or None in found:
        problems.append(f"{name}: expected shape {list(shape)}, found {list(found)}")
    return problems


def _memory_not_in_place(exported: ExportedGraph) -> list[str]:
    """Return a problem for each output that updates an input without TensorScatter, Scan or GRU.

    A runtime can bind input and output to one address only with these.
    """
    inputs = {spec.name: spec.slot for spec in exported.spec.inputs}
    problems = []
    for value, spec in zip(exported.model.graph.outputs, exported.spec.outputs, strict=True):
        if spec.memory == spec.slot:
            continue
        appended = spec.change is Change.APPENDED
        found = _updated(value, ("TensorScatter",) if appended else ("Scan", "GRU"))
        if found is None or inputs.get(found.name or "") != spec.memory:
            expected = "TensorScatter" if appended else "Scan or GRU"
            problems.append(f"{spec.name} is not {expected} of {spec.memory}")
    return problems


def _updated(value: ir.Value, operators: Sequence[str]) -> ir.Value | None:
    """Return the memory that one of the operators updates, between reshapings of a GRU's state."""
    node = value.producer()
    if node is not None and node.op_type == "Squeeze" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type not in operators:
        return None
    if node.op_type != "GRU":
        return node.inputs[0]
    state = node.inputs[5]
    reshaping = None if state is None else state.producer()
    return state if reshaping is None else reshaping.inputs[0]


DEFAULT_MAX_NEW_TOKENS = 256


def model_spec(config: ModelConfig) -> ModelSpec:
    """Return the sizes and special tokens that the runtime needs."""
    decodes = config.has_decoder
    return ModelSpec(
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        decoder_layers=config.decoder_layers if decodes else 0,
        num_heads=config.num_heads,
        head_size=config.head_size,
        max_source_positions=config.max_source_positions,
        max_target_positions=config.max_target_positions,
        pad_token_id=config.pad_token_id,
        start_token_id=config.start_token_id if decodes else 0,
        end_token_id=config.end_token_id if decodes else 0,
        value_size=None if config.value_size == config.head_size else config.value_size,
        state_size=config.d_model if config.is_recurrent else None,
    )


def head(config: ModelConfig) -> Head | None:
    """Return the head of an encoder-only model; None for a model with a decoder."""
    if config.head is None:
        return None
    head_config = config.head
    masked = head_config.task == "masked-language-model"
    outputs = len(head_config.labels)
    if head_config.task == "embedding":
        outputs = head_config.truncate_dim or head_config.embedding_size(config.d_model)
    elif head_config.task == "question-answering":
        outputs = 2
    elif masked:
        outputs = config.source_vocab_size or 0
    return Head(
        head_config.task,
        outputs,
        config.d_model,
        token_types=config.token_types if config.token_types > 1 else 0,
        labels=head_config.labels,
        multi_label=head_config.multi_label,
        mask_token_id=head_config.mask_token_id if masked else None,
    )


def audio_features(config: ModelConfig) -> AudioFeatures | None:
    """Return the audio features of a speech model; None for a text model."""
    if config.feature_size is None:
        return None
    usual = AudioFeatures(config.feature_size)
    seconds = config.feature_frames * usual.hop / usual.sampling_rate
    return AudioFeatures(config.feature_size, chunk_seconds=seconds)


def generation_settings(generation: GenerationConfig) -> GenerationSettings:
    """Return a model's generation settings for a manifest."""
    names = [field.name for field in dataclasses.fields(GenerationSettings)]
    return GenerationSettings(**{name: getattr(generation, name) for name in names})


def speech_tokens(model: AutoregressiveModel) -> SpeechTokens | None:
    """Return the prompt tokens of a speech model; None for a text model."""
    if model.config.feature_size is None:
        return None
    return model.generation.speech or SpeechTokens()


def default_max_new_tokens(model: ReferenceModel) -> int:
    """Return the model's limit, or that of its positions; 0 for an encoder-only model."""
    if isinstance(model, EncoderModel):
        return 0
    room = model.config.max_target_positions - len(model.generation.prompt)
    return min(model.generation.max_new_tokens or DEFAULT_MAX_NEW_TOKENS, room)
