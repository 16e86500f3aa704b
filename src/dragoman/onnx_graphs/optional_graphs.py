"""Makes the optional graphs of a bundle, which do not compute the model.

Attention is shown in one teacher-forced pass, by the deployed graphs with empty caches; weights are
shared. In the attention graph, the encoder's outputs become the decoder's inputs. The alignment
graph of a speech model reads the encoder's outputs, and shows logits and the cross-attention of the
layers that align words with audio. A third graph selects the best tokens, so that logits stay on a
GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.errors import DragomanError
from dragoman.runtime.format.contract import GraphSpec, Role, Slot, TensorSpec
from dragoman.runtime.format.model_spec import ModelSpec
from dragoman.runtime.format.neutral_graphs import aligning_layers, neutral_graph
from dragoman.settings.head import Head

from .graph_files import module_of

ATTENTION_FILE, ALIGNMENT_FILE = "attention.onnx", "alignment.onnx"
CANDIDATES_FILE = "candidates.onnx"
AFTER_SOFTMAX = {"Attention": ("qk_matmul_output_mode", 3), "GroupQueryAttention": ("qk_output", 2)}
"""The operators' attributes, and what they call the weights (ONNX 23; onnxruntime, contrib
operators)."""
SCORES = "FusedMatMul"
"""The operator that computes attention scores over a source of fixed length; the weights are the
output of the Softmax that follows: [sources, H, rows of a source, Q, S]."""
PASS_ON = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Between the keys of a source and attention, such as one that is computed in fp32."""
OF_SOURCE: frozenset[Role] = frozenset({"source", "source_mask", "token_type"})
WEIGHTS_OUTPUT = 3
"""The weights' place among the outputs of every attention operator. MultiHeadAttention gives scores
instead, scaled and masked."""


def attention_graph(
    models: Mapping[str, ir.Model],
    specs: Mapping[str, GraphSpec],
    model: ModelSpec,
    head: Head | None,
) -> tuple[ir.Model, GraphSpec]:
    """Make the graph that shows attention, and its specification.

    Raises:
        DragomanError: an attention has no output for its weights, or additive scores.
    """
    parts = _parts(models, ("encoder", "decoder"))
    found: dict[Role, list[ir.Value]] = {}
    for name, part in parts.items():
        for role, node in _attentions(part.graph, name, specs[name]):
            found.setdefault(role, []).append(_with_weights(part.graph, node))
    expected = neutral_graph("attention", ATTENTION_FILE, model, None, head)
    if missing := [tensor.role for tensor in expected.outputs if tensor.role not in found]:
        raise DragomanError(
            f"attention: expected scaled dot products, found other scores in {missing[0]}, whose "
            "weights no operator gives"
        )
    return _made(parts, specs, expected, found)


def alignment_graph(
    models: Mapping[str, ir.Model],
    specs: Mapping[str, GraphSpec],
    model: ModelSpec,
    named: Sequence[tuple[int, int]],
) -> tuple[ir.Model, GraphSpec]:
    """Make the graph that aligns the words of a speech model, and its specification.

    Args:
        named: the alignment heads of the checkpoint, see `aligning_heads`
    """
    parts = _parts(models, ("decoder",))
    graph = parts["decoder"].graph
    cross = [
        node
        for role, node in _attentions(graph, "decoder", specs["decoder"])
        if role == "cross_attention"
    ]
    layers = aligning_layers(model, named)
    found: dict[Role, list[ir.Value]] = {
        "cross_attention": [_with_weights(graph, cross[layer]) for layer in layers]
    }
    expected = neutral_graph("alignment", ALIGNMENT_FILE, model, None)
    return _made(parts, specs, expected, found)


def _parts(models: Mapping[str, ir.Model], names: Sequence[str]) -> dict[str, ir.Model]:
    """Copy graphs, with the name of its graph before each name of a node, weight or output."""
    parts = {name: models[name].clone() for name in names if name in models}
    for prefix, part in parts.items():
        for value in list(part.graph.initializers.values()):
            value.name = f"{prefix}/{value.name}"
        for node in part.graph:
            node.name = f"{prefix}/{node.name}"
            for output in node.outputs:
                output.name = f"{prefix}/{output.name}" if output.name else output.name
    return parts


def _made(
    parts: Mapping[str, ir.Model],
    specs: Mapping[str, GraphSpec],
    expected: GraphSpec,
    found: Mapping[Role, Sequence[ir.Value]],
) -> tuple[ir.Model, GraphSpec]:
    spec = _spec(expected, specs, found)
    graph = _joined(parts, specs, spec, found)
    result = ir.Model(graph, ir_version=max(part.ir_version for part in parts.values()))
    RemoveUnusedNodesPass()(result)
    return result, spec


def _attentions(graph: ir.Graph, name: str, spec: GraphSpec) -> list[tuple[Role, ir.Node]]:
    # Of a decoder that reads the source once more, for a head, nothing is shown.
    of_source = {tensor.name for tensor in spec.inputs if tensor.role == "cross_key"}
    found: list[tuple[Role, ir.Node]] = []
    for node in list(graph):
        if node.op_type not in (*AFTER_SOFTMAX, "MultiHeadAttention", SCORES):
            continue
        if name == "encoder" and module_of(node).startswith("decoder."):
            continue
        reads_source = _passed_on(node.inputs[1]) in of_source
        role: Role = "encoder_attention"
        if name == "decoder":
            role = "cross_attention" if reads_source else "self_attention"
        if reads_source or node.op_type != SCORES:
            found.append((role, node))
    return found


def _passed_on(value: ir.Value | None) -> str | None:
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in PASS_ON:
            break
        value = node.inputs[0]
    return None if value is None else value.name


def _with_weights(graph: ir.Graph, node: ir.Node) -> ir.Value:
    if node.op_type == SCORES:
        while node.op_type != "Softmax":
            (node,) = node.outputs[0].consumers()
        rows = ir.node("Transpose", [node.outputs[0]], {"perm": [0, 2, 1, 3, 4]})
        rows.outputs[0].name = f"{node.name}/rows"
        graph.insert_after(node, rows)
        return rows.outputs[0]
    count = len(node.outputs)
    if count > WEIGHTS_OUTPUT:
        raise DragomanError(
            f"attention: expected a free output for the weights of {node.name}, found it taken"
        )
    node.resize_outputs(WEIGHTS_OUTPUT + 1)
    value = node.outputs[WEIGHTS_OUTPUT]
    value.name = f"{node.name}/weights"
    if node.domain:  # onnxruntime does not infer the type for its own operators
        value.type = ir.TensorType(ir.DataType.FLOAT)
    if node.op_type in AFTER_SOFTMAX:
        node.attributes.add(ir.AttrInt64(*AFTER_SOFTMAX[node.op_type]))
        return value
    softmax = ir.node("Softmax", [value], {"axis": -1}, name=f"{node.name}/softmax")
    softmax.outputs[0].name = f"{node.name}/softmax"
    graph.insert_after(node, softmax)
    return softmax.outputs[0]


def _spec(
    expected: GraphSpec, specs: Mapping[str, GraphSpec], found: Mapping[Role, Sequence[ir.Value]]
) -> GraphSpec:
    types = {t.role: t.dtype for spec in specs.values() for t in (*spec.inputs, *spec.outputs)}
    encoder = specs["encoder"].inputs if "encoder" in specs else ()
    shapes = {t.role: t.shape for t in encoder if t.role in OF_SOURCE}
    inputs = tuple(
        replace(t, dtype=types.get(t.role, t.dtype), shape=shapes.get(t.role, t.shape))
        for t in expected.inputs
    )
    outputs = tuple(
        TensorSpec(t.name, t.role, t.dtype, (t.shape[0], len(found[t.role]), *t.shape[2:]))
        if t.role in found
        else TensorSpec(t.name, t.role, types[t.role], t.shape)
        for t in expected.outputs
    )
    return GraphSpec(expected.file, inputs, outputs)


def _joined(
    parts: Mapping[str, ir.Model],
    specs: Mapping[str, GraphSpec],
    spec: GraphSpec,
    found: Mapping[Role, Sequence[ir.Value]],
) -> ir.Graph:
    inputs = {tensor.slot: value_of(tensor) for tensor in spec.inputs}
    sizes = _Sizes(inputs)
    encoded: dict[Slot, ir.Value] = {}
    for name, part in parts.items():
        for value, tensor in zip(list(part.graph.inputs), specs[name].inputs, strict=True):
            given = inputs.get(tensor.slot) or encoded.get(tensor.slot)
            value.replace_all_uses_with(given or sizes.empty(tensor))
        outputs = zip(part.graph.outputs, specs[name].outputs, strict=True)
        encoded |= {tensor.slot: value for value, tensor in outputs}
    shapes = {
        tensor.role: sizes.of_layer(tensor) for tensor in spec.outputs if tensor.role in found
    }
    nodes, constants, opsets = sizes.nodes, sizes.constants, dict[str, int]()
    for part in parts.values():
        own, initializers = list(part.graph), list(part.graph.initializers.values())
        part.graph.outputs.clear()
        part.graph.initializers.clear()
        part.graph.remove(own)
        nodes += own
        constants += initializers
        opsets |= part.graph.opset_imports
    results = []
    for tensor in spec.outputs:
        if tensor.role in found:
            result = value_of(tensor)
            nodes += _stacked(found[tensor.role], result, shapes[tensor.role])
        else:
            result = encoded[tensor.slot]
            result.name = tensor.name
        results.append(result)
    return ir.Graph(
        list(inputs.values()),
        results,
        nodes=nodes,
        initializers=constants,
        opset_imports=opsets,
        name=spec.file.removesuffix(".onnx"),
    )


class _Sizes:
    def __init__(self, inputs: Mapping[Slot, ir.Value]) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._known: dict[int | str, ir.Value] = {}
        for axes, value in (
            (("source_batch", "source"), inputs.get(Slot("source_mask"))),
            (("batch", "query"), inputs.get(Slot("token"))),
        ):
            for axis, name in enumerate(axes if value else ()):
                node = ir.node("Shape", [value], {"start": axis, "end": axis + 1})
                self._known[name] = self._named(node, f"sizes/{name}")
        self._known["capacity"] = self._known["read"] = self._known.get("query", ir.Value())

    def empty(self, tensor: TensorSpec) -> ir.Value:
        """Make zeros for an input of the decoder's step: empty caches, or positions."""
        zero = ir.tensor(np.zeros(1, np.dtype(tensor.dtype)))
        node = ir.node("ConstantOfShape", [self._shape(tensor.shape)], {"value": zero})
        return self._named(node, f"empty/{tensor.name}")

    def of_layer(self, tensor: TensorSpec) -> ir.Value:
        """Make the shape of one layer of an output: [B, 1, H, Q, K]."""
        rows, _, *rest = tensor.shape
        return self._shape((rows, 1, *rest))

    def _shape(self, sizes: Sequence[int | str]) -> ir.Value:
        node = ir.node("Concat", list(map(self._size, sizes)), {"axis": 0})
        return self._named(node, "sizes/" + "_".join(map(str, sizes)))

    def _size(self, size: int | str) -> ir.Value:
        if size not in self._known:
            self._known[size] = constant_of(f"sizes/{size}", np.array([size]))
            self.constants.append(self._known[size])
        return self._known[size]

    def _named(self, node: ir.Node, name: str) -> ir.Value:
        value = node.outputs[0]
        value.name = f"{name}_{len(self.nodes)}"
        self.nodes.append(node)
        return value


def _stacked(layers: Sequence[ir.Value], result: ir.Value, shape: ir.Value) -> list[ir.Node]:
    """Stack the weights [B, H, Q, K] of each layer to float32 [B, layers, H, Q, K].

    ONNX infers another `shape` than [B, 1, H, Q, K] for the weights of Attention.
    """
    casts = [ir.node("Cast", [layer], {"to": ir.DataType.FLOAT}) for layer in layers]
    wide = [ir.node("Reshape", [cast.outputs[0], shape]) for cast in casts]
    for number, pair in enumerate(zip(casts, wide, strict=True)):
        for node in pair:
            node.outputs[0].name = f"{result.name}/{node.op_type}_{number}"
    stacked = ir.node("Concat", [n.outputs[0] for n in wide], {"axis": 1}, outputs=[result])
    return [*casts, *wide, stacked]


def value_of(tensor: TensorSpec) -> ir.Value:
    """Make the value of a graph's input or output."""
    dtype = ir.DataType[tensor.dtype.upper().replace("FLOAT32", "FLOAT")]
    return ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(dtype))


MOST_CANDIDATES = 32
"""Candidates of each row: enough for 16 beams with one end token. TensorRT has at most 3,840."""

OPSET = 24
IR_VERSION = 10


def candidates_spec(decoder: GraphSpec, suppressed: Sequence[int]) -> GraphSpec:
    """Specify the graph for a decoder."""
    logits = decoder.output("logits")
    batch, _, vocabulary = logits.shape
    shape = (batch, max(1, min(MOST_CANDIDATES, int(vocabulary) - len(set(suppressed)))))
    return GraphSpec(
        CANDIDATES_FILE,
        (logits,),
        (
            TensorSpec("candidate_token", "candidate_token", "int64", shape),
            TensorSpec("candidate_log_probability", "candidate_log_probability", "float32", shape),
        ),
    )


def candidates_graph(spec: GraphSpec, suppressed: Sequence[int]) -> ir.Model:
    """Make the graph from logits [B, Q, V] to the best tokens after the last query.

    The tokens are int64 [B, K], best first, and their log-probabilities float32 [B, K] among all
    tokens.

    Args:
        suppressed: tokens that are never selected, but count as possible ones in log-probabilities
    """
    (logits,) = map(value_of, spec.inputs)
    count = int(spec.output("candidate_token").shape[1])
    last, best = constant_of("last", np.array(-1)), constant_of("count", np.array([count]))
    gather = ir.node("Gather", [logits, last], {"axis": 1})
    cast = ir.node("Cast", gather.outputs, {"to": ir.DataType.FLOAT})
    softmax = ir.node("LogSoftmax", cast.outputs, {"axis": -1})
    nodes, constants = [gather, cast, softmax], [last, best]
    if suppressed:
        allowed = np.ones(int(spec.input("logits").shape[-1]), np.bool_)
        allowed[list(suppressed)] = False
        constants += [
            constant_of("allowed", allowed),
            constant_of("never", np.array(-np.inf, np.float32)),
        ]
        nodes.append(ir.node("Where", [constants[2], *softmax.outputs, constants[3]]))
    tokens, log_probabilities = map(value_of, spec.outputs)
    nodes.append(
        ir.node(
            "TopK", [*nodes[-1].outputs, best], {"axis": -1}, outputs=[log_probabilities, tokens]
        )
    )
    graph = ir.Graph(
        [logits],
        [tokens, log_probabilities],
        nodes=nodes,
        initializers=constants,
        opset_imports={"": OPSET},
        name="candidates",
    )
    return ir.Model(graph, ir_version=IR_VERSION)


def constant_of(name: str, numbers: NDArray[Any]) -> ir.Value:
    """Make a constant of a graph."""
    tensor = ir.tensor(numbers, name=name)
    return ir.Value(
        name=name,
        shape=ir.Shape(numbers.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
