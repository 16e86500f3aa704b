"""Makes the graphs that compute the logits of a shortlist instead of the whole vocabulary.

Whatever has an axis of the vocabulary between the deployed decoder's last product and its logits is
gathered by the graph of weights, once for a batch, for the decoder of the shortlist. A row takes
the logits that its own source allows, so that it does not depend on other rows. Weights are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dragoman.errors import DragomanError
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec, Role, TensorSpec
from dragoman.runtime.format.manifest import BundleError
from dragoman.runtime.format.onnx_graph import WEIGHTS_FILE, graph_problems
from dragoman.runtime.format.writing import BundleWriter
from dragoman.runtime.texts.shortlist import SHORTLIST_FILE, Shortlist

from .optional_graphs import IR_VERSION, OPSET, constant_of, value_of

GATHERING_FILE, DECODER_FILE = "shortlist_weights.onnx", "shortlist_decoder.onnx"
MICROSOFT = "com.microsoft"
_IDS = TensorSpec("shortlist", "shortlist", "int64", ("shortlist",))
_PRODUCTS = ("MatMul", "FusedMatMul", "MatMulIntegerToFloat", "MatMulNBits", "QGemm")


def shortlist_graphs(
    decoder: ir.Model, spec: GraphSpec, suppressed: Sequence[int] = ()
) -> tuple[dict[str, ir.Model], dict[str, GraphSpec]]:
    """Make the graphs of a shortlist, and their specifications, by name.

    Raises:
        DragomanError: the logits are not a product of weights with an axis of the vocabulary.
    """
    model = decoder.clone()
    graph, logits = model.graph, spec.output("logits")
    gathered = _GatheredWeights(int(logits.shape[-1]))
    scores = _narrowed(graph.outputs[spec.outputs.index(logits)], gathered)
    choice = spec.output("next_token"), spec.output("next_log_probability")
    rows = logits.shape[0]
    allowed = tuple(
        TensorSpec(name, name, "int64", (rows, "allowed"))
        for name in ("allowed_token", "allowed_column")
    )
    result = TensorSpec(logits.name, "logits", logits.dtype, (rows, 1, "allowed"))
    token, column = map(value_of, allowed)
    outputs: dict[Role, ir.Value] = {tensor.role: value_of(tensor) for tensor in (result, *choice)}
    suppression = None
    if suppressed:
        numbers = np.zeros(gathered.vocabulary, np.float32)
        numbers[list(suppressed)] = -np.inf
        suppression = constant_of("shortlist/suppression", numbers)
    nodes, constants = _choice(scores, token, column, outputs, suppression)
    kept = [
        outputs.get(tensor.role, value)
        for tensor, value in zip(spec.outputs, graph.outputs, strict=True)
    ]
    graph.inputs.extend([token, column, *gathered.inputs])
    for value in constants:
        graph.register_initializer(value)
    graph.extend([*gathered.products, *nodes])
    graph.outputs.clear()
    graph.outputs.extend(kept)
    _rename_unused(graph, kept)
    graph.name = "shortlist_decoder"
    graph.opset_imports.setdefault(MICROSOFT, 1)
    RemoveUnusedNodesPass()(model)
    graph.sort()
    specs = {
        "shortlist_weights": GraphSpec(GATHERING_FILE, (_IDS,), tuple(gathered.tensors)),
        "shortlist_decoder": GraphSpec(
            DECODER_FILE,
            (*spec.inputs, *allowed, *gathered.tensors),
            tuple(result if tensor is logits else tensor for tensor in spec.outputs),
        ),
    }
    return {"shortlist_weights": gathered.model(), "shortlist_decoder": model}, specs


class _GatheredWeights:
    """The graph that gathers what has an axis of the vocabulary, and the decoder's inputs for it.

    Attributes:
        tensors, inputs: what the decoder takes from it
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.tensors: list[TensorSpec] = []
        self.inputs: list[ir.Value] = []
        self.products: list[ir.Node] = []
        self._ids = value_of(_IDS)
        self._nodes: list[ir.Node] = []
        self._constants: dict[str, ir.Value] = {}
        self._results: list[ir.Value] = []

    def model(self) -> ir.Model:
        graph = ir.Graph(
            [self._ids],
            self._results,
            nodes=self._nodes,
            initializers=list(self._constants.values()),
            opset_imports={"": OPSET, MICROSOFT: 1},
            name="shortlist_weights",
        )
        return ir.Model(graph, ir_version=IR_VERSION)

    def compute(self, node: ir.Node) -> ir.Value:
        """Add a node to the decoder; return its output."""
        self.products.append(node)
        node.outputs[0].name = f"shortlist/{node.op_type}_{len(self.products)}"
        return node.outputs[0]

    def gather(self, value: ir.Value, axis: int, *, transposed: bool = False) -> ir.Value:
        """Return the decoder's input that holds a weight's numbers of the shortlist.

        Args:
            transposed: whether the two axes of the weight are exchanged
        """
        found = self._of_shortlist(value, axis)
        return self._output(self._transposed(found, [1, 0]) if transposed else found)

    def gather_blocks(self, node: ir.Node, inputs: int) -> ir.Value:
        """Return the decoder's input that holds the dequantized weights of a product of blocks."""
        weight, scale = map(self._constant, node.inputs[1:3])
        column = self._node("Unsqueeze", [scale, self._known("last_axis", -1)])
        attributes = {name: node.attributes[name].as_int() for name in ("bits", "block_size")}
        rows = self._node(
            "GatherBlockQuantized",
            [weight, self._ids, column],
            attributes | {"gather_axis": 0, "quantize_axis": 2},
            MICROSOFT,
        )
        flat = self._node("Reshape", [rows, self._known("rows", 0, -1)])
        first = self._known("inputs", inputs)
        begin, axes = self._known("begin", 0), self._known("axes", 1)
        cut = self._node("Slice", [flat, begin, first, axes])
        cut.shape, cut.type = ir.Shape(["shortlist", inputs]), ir.TensorType(ir.DataType.FLOAT)
        return self._output(self._transposed(cut, [1, 0]))

    def _transposed(self, found: ir.Value, permutation: Sequence[int]) -> ir.Value:
        turned = self._node("Transpose", [found], {"perm": permutation})
        assert found.shape is not None
        turned.shape = ir.Shape([found.shape[axis] for axis in permutation])
        turned.type = found.type
        return turned

    def _output(self, found: ir.Value) -> ir.Value:
        assert found.shape is not None and found.dtype is not None
        number = len(self.tensors)
        shape = tuple(size if isinstance(size, int) else "shortlist" for size in found.shape)
        dtype: Any = found.dtype.numpy().name
        name = f"shortlist_weight_{number}"
        tensor = TensorSpec(name, "shortlist_weight", dtype, shape, number)
        self.inputs.append(value_of(tensor))
        found.name = name
        self._results.append(found)
        self.tensors.append(tensor)
        return self.inputs[-1]

    def _of_shortlist(self, value: ir.Value, axis: int) -> ir.Value:
        node = value.producer()
        if node is None:
            constant = self._constant(value)
            rows = self._node("Gather", [constant, self._ids], {"axis": axis})
            assert constant.const_value is not None
            sizes: list[int | str] = list(map(int, constant.const_value.shape.numpy()))
            sizes[axis] = "shortlist"
            rows.shape, rows.type = ir.Shape(sizes), ir.TensorType(constant.const_value.dtype)
            return rows
        weight = node.inputs[0]
        assert weight is not None
        attributes = dict(node.attributes)
        if node.op_type == "Transpose":
            permutation = node.attributes["perm"].as_ints()
            return self._transposed(self._of_shortlist(weight, permutation[axis]), permutation)
        if node.op_type == "Cast":
            before = self._of_shortlist(weight, axis)
            cast = self._node("Cast", [before], attributes)
            cast.shape = before.shape
            cast.type = ir.TensorType(ir.DataType(node.attributes["to"].as_int()))
            return cast
        if node.op_type == "DequantizeLinear":
            own = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
            scales = [
                self._scale_of_shortlist(scale, axis, own)
                for scale in node.inputs[1:]
                if scale is not None
            ]
            integers = self._of_shortlist(weight, axis)
            numbers = self._node("DequantizeLinear", [integers, *scales], attributes)
            numbers.shape, numbers.type = integers.shape, scales[0].type
            return numbers
        raise _unknown(node)

    def _scale_of_shortlist(self, scale: ir.Value, axis: int, own: int) -> ir.Value:
        assert scale.shape is not None
        if len(scale.shape) == 1 and own == axis:
            return self._of_shortlist(scale, 0)
        if len(scale.shape) == 2:
            return self._of_shortlist(scale, axis)
        return self._constant(scale)

    def _constant(self, value: ir.Value | None) -> ir.Value:
        if value is None or value.const_value is None:
            raise DragomanError("shortlist: expected logits of constant weights, found others")
        name = value.name or ""
        if name not in self._constants:
            self._constants[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
        return self._constants[name]

    def _known(self, name: str, *numbers: int) -> ir.Value:
        return self._constants.setdefault(name, constant_of(name, np.array(numbers)))

    def _node(
        self, operator: str, inputs: Sequence[ir.Value], attributes: Any = None, domain: str = ""
    ) -> ir.Value:
        node = ir.node(operator, inputs, attributes, domain=domain)
        node.outputs[0].name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(node)
        return node.outputs[0]


def _narrowed(value: ir.Value, gathered: _GatheredWeights) -> ir.Value:
    node = value.producer()
    if node is None:
        raise DragomanError("shortlist: expected logits that a product computes, found an input")
    first, *others = node.inputs
    assert first is not None
    attributes = tuple(node.attributes.values())
    if node.op_type in _PRODUCTS:
        return _product(node, gathered)
    if node.op_type in ("Reshape", "Identity"):  # of the rows of a product
        return _narrowed(first, gathered)
    if node.op_type in ("Add", "Mul", "Div", "Tanh", "Cast"):
        if _is_of_vocabulary(first, gathered):
            first, others = others[0], [first]
        assert first is not None
        found = [_operand(other, gathered) for other in others]
        inputs = [_narrowed(first, gathered), *found]
        return gathered.compute(ir.Node("", node.op_type, inputs, attributes=attributes))
    raise _unknown(node)


def _is_of_vocabulary(value: ir.Value, gathered: _GatheredWeights) -> bool:
    return value.const_value is not None and value.const_value.size == gathered.vocabulary


def _operand(value: ir.Value | None, gathered: _GatheredWeights) -> ir.Value | None:
    if value is None or not _is_of_vocabulary(value, gathered):
        return value
    return gathered.gather(value, len(value.shape or ()) - 1)


def _product(node: ir.Node, gathered: _GatheredWeights) -> ir.Value:
    x, weight = node.inputs[0], node.inputs[1]
    attributes = tuple(node.attributes.values())
    assert x is not None and weight is not None
    if node.op_type == "MatMul":
        return gathered.compute(ir.node("MatMul", [x, gathered.gather(weight, 1)]))
    if node.op_type == "FusedMatMul" and set(node.attributes) == {"transB"}:
        columns = gathered.gather(weight, 0, transposed=True)
        return gathered.compute(ir.node("MatMul", [x, columns]))
    if node.op_type == "MatMulIntegerToFloat":
        others = [_operand(value, gathered) for value in node.inputs[2:]]
        inputs = [x, gathered.gather(weight, 1), *others]
        product = ir.Node(MICROSOFT, node.op_type, inputs, attributes=attributes)
        return gathered.compute(product)
    if node.op_type == "MatMulNBits":
        size = node.attributes["K"].as_int()
        found = gathered.compute(ir.node("MatMul", [x, gathered.gather_blocks(node, size)]))
        bias = _operand(node.inputs[5], gathered) if len(node.inputs) > 5 else None
        return found if bias is None else gathered.compute(ir.node("Add", [found, bias]))
    if node.op_type == "QGemm":
        rows, scale, zero_point, table, scales = node.inputs[:5]
        reshape = None if rows is None else rows.producer()
        assert table is not None and reshape is not None
        columns = gathered.gather(table, 0, transposed=True)
        factors = [reshape.inputs[0], columns, scale, _operand(scales, gathered), zero_point]
        return gathered.compute(ir.node("MatMulIntegerToFloat", factors, domain=MICROSOFT))
    raise _unknown(node)


def _unknown(node: ir.Node) -> DragomanError:
    return DragomanError(
        f"shortlist: expected logits that are a product by weights, found {node.op_type} "
        f"({node.name})"
    )


def _choice(
    scores: ir.Value,
    token: ir.Value,
    column: ir.Value,
    outputs: Mapping[Role, ir.Value],
    suppression: ir.Value | None,
) -> tuple[list[ir.Node], list[ir.Value]]:
    """Select the most probable of the tokens that each row allows, after its last query.

    Args:
        scores: logits of the shortlist [B, Q, U]
        token, column: tokens that each row allows, and their places in the shortlist, int64 [B, A]
        suppression: is added to each token's logit for the selection
    """
    dtype = outputs["logits"].dtype or ir.DataType.FLOAT
    last = constant_of("shortlist/last", np.array(-1))
    never = constant_of("shortlist/never", np.array(-np.inf, np.float32).astype(dtype.numpy()))
    middle = constant_of("shortlist/middle", np.array([1]))
    nodes: list[ir.Node] = []

    def add(operator: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        nodes.append(ir.node(operator, inputs, attributes))
        nodes[-1].outputs[0].name = f"shortlist/choice_{len(nodes)}"
        return nodes[-1].outputs[0]

    after = add("Gather", [scores, last], axis=1)
    own = add("GatherElements", [after, column], axis=1)
    allowed = add("Where", [add("LessOrEqual", [token, last]), never, own])
    wide = allowed if dtype == ir.DataType.FLOAT else add("Cast", [allowed], to=ir.DataType.FLOAT)
    constants = [last, never, middle]
    if suppression is not None:
        wide = add("Add", [wide, add("Gather", [suppression, token])])
        constants.append(suppression)
    place = add("ArgMax", [wide], axis=1)
    chosen = add("GatherElements", [token, place], axis=1)
    likely = add("GatherElements", [add("LogSoftmax", [wide], axis=-1), place], axis=1)
    nodes += [
        ir.node("Unsqueeze", [allowed, middle], outputs=[outputs["logits"]]),
        ir.node("Squeeze", [chosen, middle], outputs=[outputs["next_token"]]),
        ir.node("Squeeze", [likely, middle], outputs=[outputs["next_log_probability"]]),
    ]
    return nodes, constants


def _rename_unused(graph: ir.Graph, kept: Sequence[ir.Value]) -> None:
    names = {value.name for value in kept}
    for node in graph:
        for value in node.outputs:
            if value.name in names and not any(value is output for output in kept):
                value.name = f"{value.name}/unused"


def add_shortlist(bundle: Bundle, shortlist: Shortlist) -> Bundle:
    """Add a shortlist to a bundle of graphs in its directory.

    The manifest is not written.
    """
    manifest, files = bundle.manifest, BundleWriter(bundle.directory)
    models, specs = shortlist_graphs(
        ir.load(bundle.graph_path("decoder")),
        manifest.graphs["decoder"],
        manifest.generation.suppressed_token_ids,
    )
    weights = bundle.path(WEIGHTS_FILE).stat().st_size
    for name, model in models.items():
        data = ir.to_proto(model).SerializeToString()
        if problems := graph_problems(data, weights):
            raise BundleError(specs[name].file, problems)
        files.write(specs[name].file, data)
    files.write(SHORTLIST_FILE, shortlist.to_bytes())
    return Bundle(
        bundle.directory,
        replace(
            manifest,
            graphs={**manifest.graphs, **specs},
            files=tuple(sorted((*manifest.files, *files.records), key=lambda file: file.path)),
            shortlist=shortlist.record,
        ),
    )
