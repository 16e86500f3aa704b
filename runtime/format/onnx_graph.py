"""Checks that an ONNX file is allowed in a bundle, before any other library reads it.

Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dragoman.errors import shown
from dragoman.files.protobuf import BYTES, FIXED32, VARINT, Message, Schema, WireError

WEIGHTS_FILE = "weights.bin"
"""The weights file in the directory of the graphs."""

LARGEST_GRAPH = 1 << 22
"""Maximum size of a graph's file in bytes. Without weights, a 6 + 6 layer graph has 100,000."""

OPERATORS: Mapping[str, Mapping[str, str]] = {
    "": {
        "Abs": "int8 activations",
        "Add": "biases, residuals, positions",
        "ArgMax": "greedy choice",
        "Attention": "attention of neutral graphs, of encoders, of engines",
        "Cast": "masks, positions; changes of precision",
        "Clip": "distances of relative positions; range of fp16",
        "Concat": "shapes",
        "ConstantOfShape": "layer norm on the processor",
        "Conv": "front end of speech models",
        "CumSum": "positions of sources whose padding has none",
        "DequantizeLinear": "int8 and int4 weights",
        "Div": "shapes, int8 activations",
        "Equal": "padding without a position",
        "Expand": "masks",
        "GRU": "states of recurrent decoders",
        "Gather": "embeddings, the last query",
        "GatherElements": "greedy choice, the queries that are read",
        "Gelu": "feed-forward",
        "Gemm": "heads of encoders",
        "InstanceNormalization": "layer norm on the processor",
        "LayerNormalization": "layer norm",
        "LessOrEqual": "causal mask",
        "LogSoftmax": "log-probability of the choice and of candidates",
        "MatMul": "projections",
        "Max": "int8 activations",
        "Mul": "gains, scales, gates",
        "Not": "padding without a position",
        "Pad": "greedy choice",
        "QuantizeLinear": "int8 activations",
        "RMSNormalization": "norm of T5",
        "Range": "positions",
        "ReduceL2": "normalized vectors",
        "ReduceMax": "greedy choice, pooling, int8 activations",
        "ReduceSum": "pooling",
        "Relu": "feed-forward",
        "Reshape": "heads",
        "Scan": "states of recurrent decoders",
        "Shape": "shapes",
        "Sigmoid": "feed-forward with SiLU",
        "Slice": "embeddings that are truncated",
        "Softmax": "attention over audio, and spelled out for engines",
        "Sqrt": "pooling",
        "Squeeze": "shapes, masks",
        "Sub": "distances of relative positions",
        "Tanh": "feed-forward",
        "TensorScatter": "caches",
        "TopK": "candidates",
        "Transpose": "heads, tied embeddings",
        "Unsqueeze": "shapes, masks",
        "Where": "masks",
    },
    "com.microsoft": {
        "BiasGelu": "feed-forward",
        "FastGelu": "feed-forward",
        "FusedMatMul": "logits from a tied embedding, attention over audio",
        "GatherBlockQuantized": "int4 embeddings",
        "GroupQueryAttention": "self-attention of the decoder",
        "MatMulIntegerToFloat": "int8 projections",
        "MatMulNBits": "int4 projections",
        "MultiHeadAttention": "attention over a complete source",
        "QGemm": "int8 logits from a tied embedding",
    },
}
"""The purpose of each allowed operator by domain: "" for ONNX, com.microsoft for ONNX Runtime.

A graph with any other operator is rejected when its bundle is written and when it is read, before
ONNX Runtime sees it. The work of an allowed operator is bounded by the sizes of its inputs and
outputs. It opens no file, and contains no subgraph, unlike Loop and If. The only subgraph is that
of the Scan that moves states on, see `_moves_a_state`. It runs once for each query, and reads
numbers of each: those that it multiplies by the state, whose size is fixed.
"""

_SCAN, _STEP = b"Scan", [b"Mul", b"Add", b"Identity"]
_SCAN_ATTRIBUTES = {b"body", b"num_scan_inputs", b"scan_input_axes", b"scan_output_axes"}
_SMALLEST_STATE = 2
"""Numbers of a state. One would be multiplied by none, too, as often as a graph says."""


_MOST_PROBLEMS = 8


def _fields(kind: int, **numbers: int) -> dict[str, tuple[int, int]]:
    return {name: (kind, number) for name, number in numbers.items()}


_MODEL = Schema(
    "ModelProto",
    once=_fields(VARINT, ir_version=1, model_version=5)
    | _fields(BYTES, producer_name=2, producer_version=3, domain=4, doc_string=6, graph=7),
    many=_fields(BYTES, opset_import=8, metadata_props=14),
    refused={"training_info": 20, "functions": 25, "configuration": 26},
)
_OPSET = Schema("OperatorSetIdProto", once=_fields(BYTES, domain=1) | _fields(VARINT, version=2))
_GRAPH = Schema(
    "GraphProto",
    once=_fields(BYTES, name=2, doc_string=10),
    many=_fields(
        BYTES,
        node=1,
        initializer=5,
        input=11,
        output=12,
        value_info=13,
        quantization_annotation=14,
        metadata_props=16,
    ),
    refused={"sparse_initializer": 15},
)
_NODE = Schema(
    "NodeProto",
    once=_fields(BYTES, name=3, op_type=4, doc_string=6, domain=7, overload=8),
    many=_fields(BYTES, input=1, output=2, attribute=5, metadata_props=9),
    refused={"device_configurations": 10},
)
_ATTRIBUTE = Schema(
    "AttributeProto",
    once=_fields(BYTES, name=1, s=4, t=5, g=6, doc_string=13)
    | _fields(FIXED32, f=2)
    | _fields(VARINT, i=3, type=20),
    many=_fields(FIXED32, floats=7)
    | _fields(VARINT, ints=8)
    | _fields(BYTES, strings=9, tensors=10),
    refused={
        "graphs": 11,
        "tp": 14,
        "type_protos": 15,
        "ref_attr_name": 21,
        "sparse_tensor": 22,
        "sparse_tensors": 23,
    },
)
_VALUE = Schema(
    "ValueInfoProto",
    once=_fields(BYTES, name=1, type=2, doc_string=3),
    many=_fields(BYTES, metadata_props=4),
)
_TYPE = Schema(
    "TypeProto",
    once=_fields(BYTES, tensor_type=1, denotation=6),
    refused={"sequence_type": 4, "map_type": 5, "sparse_tensor_type": 8, "optional_type": 9},
)
_TENSOR_TYPE = Schema(
    "TypeProto.Tensor", once=_fields(VARINT, elem_type=1) | _fields(BYTES, shape=2)
)
_SHAPE = Schema("TensorShapeProto", once={}, many=_fields(BYTES, dim=1))
_DIM = Schema(
    "TensorShapeProto.Dimension",
    once=_fields(VARINT, dim_value=1) | _fields(BYTES, dim_param=2, denotation=3),
)
_TENSOR = Schema(
    "TensorProto",
    once=_fields(VARINT, data_type=2, data_location=14)
    | _fields(
        BYTES,
        float_data=4,
        int32_data=5,
        int64_data=7,
        name=8,
        raw_data=9,
        double_data=10,
        uint64_data=11,
        doc_string=12,
    ),
    many=_fields(VARINT, dims=1)
    | _fields(BYTES, string_data=6, external_data=13, metadata_props=16),
    refused={"segment": 3},
)
_ENTRY = Schema("StringStringEntryProto", once=_fields(BYTES, key=1, value=2))

_EXTERNAL = 1
_FLOAT, _INT64 = 1, 7
_PLACE = (b"location", b"offset", b"length")

_ALLOWED = {
    (domain.encode(), operator.encode())
    for domain, operators in OPERATORS.items()
    for operator in operators
}


def graph_problems(data: bytes, weights: int | None) -> list[str]:
    """Return one line for each reason why an ONNX file is not allowed in a bundle.

    These are operators and domains outside `OPERATORS`, subgraphs, functions, and weights outside
    the bundle's `WEIGHTS_FILE`. The backend checks everything else, such as types.

    Args:
        weights: size of the bundle's `WEIGHTS_FILE` in bytes; None: no such file
    """
    if len(data) > LARGEST_GRAPH:
        return [f"expected a graph of at most {LARGEST_GRAPH} bytes, found {len(data)}"]
    problems: dict[str, None] = {}
    try:
        for problem in _problems(Message(data, _MODEL), weights):
            if len(problems) == _MOST_PROBLEMS and problem not in problems:
                return [*problems, "and more"]
            problems[problem] = None
    except WireError as error:
        problems[f"expected an ONNX graph as Dragoman writes one: {error}"] = None
    return [*problems]


def bytes_read(data: bytes) -> int:
    """Return the bytes of weights that a run of a graph reads.

    Tables of which rows are gathered, such as embeddings, and 64-bit integers do not count.
    """
    graph = Message(Message(data, _MODEL).part("graph"), _GRAPH)
    read: set[bytes] = set()
    for node in (Message(part, _NODE) for part in graph.parts("node")):
        gathers = node.part("op_type").startswith(b"Gather")
        read.update(node.parts("input")[1 if gathers else 0 :])
    total = 0
    for tensor in (Message(part, _TENSOR) for part in graph.parts("initializer")):
        if tensor.part("name") in read and tensor.number("data_type") != _INT64:
            total += len(tensor.part("raw_data"))
            entries = [Message(part, _ENTRY) for part in tensor.parts("external_data")]
            total += sum(int(e.part("value")) for e in entries if e.part("key") == b"length")
    return total


def constants(data: bytes) -> dict[str, bytes]:
    """Return the raw data of each node's tensor attribute by the name of the node's output.

    Subgraphs are included. Operators may be any.

    Raises:
        WireError: the bytes are not an ONNX file, or have fields that graphs of a bundle may not.
    """
    found, graphs = dict[str, bytes](), [Message(data, _MODEL).part("graph")]
    while graphs:
        for node in (Message(part, _NODE) for part in Message(graphs.pop(), _GRAPH).parts("node")):
            for attribute in (Message(part, _ATTRIBUTE) for part in node.parts("attribute")):
                graphs += attribute.parts("g")
                for name, tensor in zip(node.parts("output"), attribute.parts("t"), strict=False):
                    tensor_data = Message(tensor, _TENSOR).part("raw_data")
                    found[name.decode(errors="replace")] = tensor_data
    return found


def _problems(model: Message, weights: int | None) -> Iterator[str]:
    domains = {domain.encode() for domain in OPERATORS}
    for part in model.parts("opset_import"):
        domain = Message(part, _OPSET).part("domain")
        if domain not in domains:
            yield f"domain {_shown(domain)}: expected one of {', '.join(map(repr, OPERATORS))}"
    for part in model.parts("graph"):
        graph = Message(part, _GRAPH)
        states = {name for name in map(_state, graph.parts("input")) if name}
        for node in graph.parts("node"):
            yield from _node_problems(Message(node, _NODE), states, weights)
        for tensor in graph.parts("initializer"):
            yield from _tensor_problems(Message(tensor, _TENSOR), weights)


def _state(value: bytes) -> bytes:
    """Return the name of a graph's input if it may be a state: float32 [any, a fixed number]."""
    named = Message(value, _VALUE)
    tensor = Message(Message(named.part("type"), _TYPE).part("tensor_type"), _TENSOR_TYPE)
    sizes = [Message(dim, _DIM) for dim in Message(tensor.part("shape"), _SHAPE).parts("dim")]
    is_state = (
        tensor.number("elem_type") == _FLOAT
        and len(sizes) == 2
        and sizes[1].number("dim_value") >= _SMALLEST_STATE
    )
    return named.part("name") if is_state else b""


def _moves_a_state(node: Message, states: set[bytes]) -> bool:
    """Return whether a Scan is one of ours: state * gate + update for each query, in axis 1."""
    inputs = node.parts("input")
    attributes = [Message(part, _ATTRIBUTE) for part in node.parts("attribute")]
    named = {attribute.part("name"): attribute for attribute in attributes}
    domain = node.part("domain")
    if domain or len(inputs) != 3 or inputs[0] not in states or named.keys() != _SCAN_ATTRIBUTES:
        return False
    numbers = [named[name].number("ints") for name in (b"scan_input_axes", b"scan_output_axes")]
    body = Message(named[b"body"].part("g"), _GRAPH)
    steps = [Message(part, _NODE) for part in body.parts("node")]
    if (
        named[b"num_scan_inputs"].number("i") != 2
        or numbers != [1, 1]
        or len(attributes) != len(named)
        or body.parts("initializer")
        or [step.part("op_type") for step in steps] != _STEP
        or any(step.parts("attribute") or step.part("domain") for step in steps)
    ):
        return False
    names = [Message(part, _VALUE).part("name") for part in body.parts("input")]
    if len(names) != 3:
        return False
    state, gate, update = names
    written = [name for step in steps for name in step.parts("output")]
    if len(written) != len(steps) or len({*names, *written}) != len(names) + len(written):
        return False
    kept, moved, shown = written
    found = [step.parts("input") for step in steps]
    outputs = [Message(part, _VALUE).part("name") for part in body.parts("output")]
    return found == [[gate, state], [kept, update], [moved]] and outputs == [moved, shown]


def _node_problems(node: Message, states: set[bytes], weights: int | None) -> Iterator[str]:
    domain, operator = node.part("domain"), node.part("op_type")
    if (domain, operator) not in _ALLOWED or node.part("overload"):
        named = _shown(domain + b"." + operator if domain else operator)
        yield (
            f"operator {named}: expected one that this version of Dragoman writes "
            "(dragoman.runtime.format.onnx_graph)"
        )
        return
    if operator == _SCAN:
        if not _moves_a_state(node, states):
            yield "operator 'Scan': expected state * gate + update for each query, found another"
        return
    for part in node.parts("attribute"):
        attribute = Message(part, _ATTRIBUTE)
        if attribute.parts("g"):
            yield f"operator {_shown(operator)}: expected no subgraph, found one"
            return
        for tensor in (*attribute.parts("t"), *attribute.parts("tensors")):
            yield from _tensor_problems(Message(tensor, _TENSOR), weights)


def _tensor_problems(tensor: Message, weights: int | None) -> Iterator[str]:
    entries = tensor.parts("external_data")
    if not entries and tensor.number("data_location") != _EXTERNAL:
        return
    name = f"tensor {_shown(tensor.part('name'))}"
    place: dict[bytes, bytes] = {}
    for part in entries:
        entry = Message(part, _ENTRY)
        key = entry.part("key")
        if key in place or key not in _PLACE:
            yield f"{name}: expected its location, offset and length, once each"
            return
        place[key] = entry.part("value")
    location = place.get(b"location", b"")
    if location != WEIGHTS_FILE.encode():
        yield f"{name}: expected to be stored in {WEIGHTS_FILE}, found {_shown(location)}"
    elif weights is None:
        yield f"{name}: expected {WEIGHTS_FILE} among the bundle's files, found none"
    else:
        offset, length = (_number(place.get(key, b"")) for key in _PLACE[1:])
        if offset is None or length is None or offset + length > weights:
            yield (
                f"{name}: expected offset and length within the {weights} bytes of {WEIGHTS_FILE}, "
                f"found {_shown(place.get(b'offset', b''))} and {_shown(place.get(b'length', b''))}"
            )


def _number(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) < 20 else None


def _shown(name: bytes) -> str:
    return shown(name.decode(errors="replace"))
