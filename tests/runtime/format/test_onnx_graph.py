"""What graphs a bundle may have, held against onnx's own reader."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from dragoman.runtime.format import onnx_graph
from dragoman.runtime.format.onnx_graph import OPERATORS, graph_problems

GRAPHS = sorted((Path(__file__).parent / "stored_bundle" / "bundle").glob("*.onnx"))
WEIGHTS = 12736
OPERATOR_IDS = {(domain, name) for domain, names in OPERATORS.items() for name in names}


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors


def outside(model: ModelProto) -> list[tuple[str, int, int]]:
    """The file, offset and length of each tensor that is stored in a file of its own."""
    places = [
        {entry.key: entry.value for entry in tensor.external_data}
        for tensor in tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL
    ]
    return [(place["location"], int(place["offset"]), int(place["length"])) for place in places]


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: str(path.name))
def test_every_operator_and_weight_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one operator on the list, or one byte of the weights, exactly that is missed."""
    data = path.read_bytes()
    model = onnx.load_from_string(data)
    operators = {(node.domain, node.op_type) for node in model.graph.node}
    end = max(offset + length for _, offset, length in outside(model))
    assert len(operators) > 10 and end <= WEIGHTS
    assert graph_problems(data, end) == []
    (problem,) = graph_problems(data, end - 1)
    assert "expected offset and length within" in problem
    assert "expected weights.bin among the bundle's files" in graph_problems(data, None)[0]
    allowed = onnx_graph._ALLOWED
    for domain, operator in operators:
        missing = allowed - {(domain.encode(), operator.encode())}
        monkeypatch.setattr(onnx_graph, "_ALLOWED", missing)
        (problem,) = graph_problems(data, end)
        assert problem.startswith(f"operator '{domain + '.' if domain else ''}{operator}': ")


def mutated(data: bytes, generator: random.Random) -> bytes:
    """A few bytes changed, removed, repeated or cut off."""
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8))):
        at = generator.randrange(len(changed))
        length = generator.choice((1, 2, 5, 30, 300))
        match generator.randrange(6):
            case 0:
                changed[at] ^= 1 << generator.randrange(8)
            case 1:
                changed[at] = generator.randrange(256)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                changed[at : at + length] = generator.randbytes(length)
            case _:
                del changed[at + 1 :]
    return bytes(changed)


def parsed(data: bytes) -> ModelProto | None:
    """None: damaged in a part that is not looked at here, such as the shape of a value."""
    try:
        return onnx.load_from_string(data)
    except Exception:
        return None


def test_damaged_graphs_are_refused_or_harmless() -> None:
    """Whatever passes is, in the eyes of onnx, a graph of known operators with its weights in
    weights.bin, or nothing at all."""
    generator = random.Random(1)
    contents = [path.read_bytes() for path in GRAPHS]
    passed = 0
    for index in range(5000):
        data = mutated(contents[index % 2], generator)
        problems = graph_problems(data, WEIGHTS)
        assert all("\n" not in problem and len(problem) < 400 for problem in problems)
        assert len(problems) < 12
        if problems:
            continue
        model = parsed(data)
        if model is None:
            continue
        passed += 1
        assert {(node.domain, node.op_type) for node in model.graph.node} <= OPERATOR_IDS
        assert not model.functions and not model.training_info
        assert not model.graph.sparse_initializer
        for location, offset, length in outside(model):
            assert location == "weights.bin"
            assert 0 <= offset <= offset + length <= WEIGHTS
    assert passed > 400


def model() -> ModelProto:
    """y = x + w, with w in weights.bin."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[5])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "64"), ("length", "20")):
        weight.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [5]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


def problems_of(model: ModelProto, weights: int | None = 84) -> list[str]:
    return graph_problems(model.SerializeToString(), weights)


def test_a_small_graph_passes() -> None:
    assert problems_of(model()) == []
    assert graph_problems(b"", None) == []  # says nothing: left to the backend


def node(operator: str, domain: str = "") -> Callable[[ModelProto], object]:
    return lambda m: m.graph.node.append(helper.make_node(operator, ["x"], ["z"], domain=domain))


def elsewhere(m: ModelProto) -> TensorProto:
    tensor = TensorProto(name="c", data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    return tensor


def states(**changes: object) -> ModelProto:
    """A graph that moves a state on.

    Args:
        changes: `size` of the state, `outer` operator, `axis` and `inputs` of the Scan, `body`,
            nodes in place of the right ones, and `stored`, whether the body has a weight elsewhere
    """
    values: dict[str, Any] = {"size": 4, "outer": "Scan", "axis": 1, "stored": False} | changes
    info = helper.make_tensor_value_info
    inside = [info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("state", "gate", "update")]
    nodes = values.get("body") or [
        helper.make_node("Mul", ["gate", "state"], ["kept"]),
        helper.make_node("Add", ["kept", "update"], ["moved"]),
        helper.make_node("Identity", ["moved"], ["shown"]),
    ]
    ends = [info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("moved", "shown")]
    body = helper.make_graph(nodes, "body", inside, ends)
    if values["stored"]:
        body.initializer.append(elsewhere(ModelProto()))
    scan = helper.make_node(
        values["outer"],
        values.get("inputs", ["past", "x", "x"]),
        ["present", "y"],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[1, values["axis"]],
        scan_output_axes=[1],
    )
    past = info("past", values.get("type", TensorProto.FLOAT), ["batch", values["size"]])
    x, y = (info(n, TensorProto.FLOAT, ["batch", "query", 4]) for n in "xy")
    present = info("present", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([scan], "g", [past, x], [present, y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


def test_the_scan_of_states_passes() -> None:
    assert problems_of(states()) == []
    onnx.checker.check_model(states(), full_check=True)


OTHER_STEPS = [
    helper.make_node("Add", ["gate", "state"], ["kept"]),
    helper.make_node("Add", ["kept", "update"], ["moved"]),
    helper.make_node("Identity", ["moved"], ["shown"]),
]
WITH_A_GRAPH = [
    helper.make_node("Mul", ["gate", "state"], ["kept"], body=helper.make_graph([], "b", [], [])),
    *OTHER_STEPS[1:],
]
WITHOUT_THE_STATE = [helper.make_node("Mul", ["gate", "gate"], ["kept"]), *OTHER_STEPS[1:]]
SCANS: dict[str, tuple[dict[str, object], str]] = {
    "other operators": ({"body": OTHER_STEPS}, "operator 'Scan': expected state * gate + update"),
    "a graph inside": ({"body": WITH_A_GRAPH}, "operator 'Scan': expected state * gate + update"),
    "no state inside": ({"body": WITHOUT_THE_STATE}, "operator 'Scan': expected state * gate"),
    "another operator": ({"outer": "Add"}, "operator 'Add': expected no subgraph, found one"),
    "a loop": ({"outer": "Loop"}, "operator 'Loop': expected one that this version of Drag"),
    "another axis": ({"axis": 0}, "operator 'Scan': expected state * gate + update"),
    "weights inside": ({"stored": True}, "operator 'Scan': expected state * gate + update"),
    "a state that is no input": ({"inputs": ["x", "x", "x"]}, "operator 'Scan': expected state"),
    "three inputs": ({"inputs": ["past", "x", "x", "x"]}, "operator 'Scan': expected state * g"),
    "a state of one number": ({"size": 1}, "operator 'Scan': expected state * gate + update"),
    "a state of any size": ({"size": "any"}, "operator 'Scan': expected state * gate + update"),
    "a state of integers": ({"type": TensorProto.INT64}, "operator 'Scan': expected state * gate"),
}
"""Its work is bounded only if each query has numbers: those that are multiplied by a state."""


@pytest.mark.parametrize("name", SCANS)
def test_other_scans_are_refused(name: str) -> None:
    changes, expected = SCANS[name]
    (problem,) = problems_of(states(**changes))
    assert expected in problem and len(problem) < 300


def attribute(**values: object) -> Callable[[ModelProto], object]:
    return lambda m: m.graph.node[0].attribute.append(
        onnx.AttributeProto(name="a", **values)  # type: ignore[arg-type]
    )


def place(key: str, value: str | None) -> Callable[[ModelProto], object]:
    """The weight is stored elsewhere; None: the entry is missing."""

    def change(m: ModelProto) -> None:
        entries = m.graph.initializer[0].external_data
        (entry,) = (e for e in entries if e.key == key)
        if value is None:
            entries.remove(entry)
        else:
            entry.value = value

    return change


OPERATOR, STORED = (
    "expected one that this version of Dragoman writes",
    "expected to be stored in weight",
)
WITHIN = "tensor 'w': expected offset and length within the 84 bytes of weights.bin"
REFUSED: dict[str, tuple[Callable[[ModelProto], object], str]] = {
    "Loop": (node("Loop"), f"operator 'Loop': {OPERATOR}"),
    "Scan": (node("Scan"), "operator 'Scan': expected state * gate + update"),
    "If": (node("If"), f"operator 'If': {OPERATOR}"),
    "SequenceMap": (node("SequenceMap"), f"operator 'SequenceMap': {OPERATOR}"),
    "an engine's context": (node("EPContext", "com.microsoft"), "operator 'com.microsoft.EPConte"),
    "a known name in another domain": (node("Add", "com.microsoft"), "'com.microsoft.Add'"),
    "a custom domain": (node("Add", "com.example"), "operator 'com.example.Add'"),
    "the default domain by its other name": (node("Add", "ai.onnx"), "operator 'ai.onnx.Add'"),
    "no operator": (node(""), "operator '': "),
    "an overload": (lambda m: setattr(m.graph.node[0], "overload", "x"), "operator 'Add'"),
    "an opset of another domain": (
        lambda m: m.opset_import.append(helper.make_opsetid("com.example", 1)),
        "domain 'com.example': expected one of '', 'com.microsoft'",
    ),
    "a function": (
        lambda m: m.functions.append(onnx.FunctionProto(name="Add")),
        "ModelProto.functions: expected none",
    ),
    "training": (
        lambda m: m.training_info.append(onnx.TrainingInfoProto()),
        "ModelProto.training_info: expected none",
    ),
    "a sparse initializer": (
        lambda m: m.graph.sparse_initializer.append(onnx.SparseTensorProto()),
        "GraphProto.sparse_initializer: expected none",
    ),
    "a graph in a node": (attribute(g=onnx.GraphProto()), "expected no subgraph, found one"),
    "graphs in a node": (attribute(graphs=[onnx.GraphProto()]), "AttributeProto.graphs: expected"),
    "an attribute of a function": (attribute(ref_attr_name="b"), "AttributeProto.ref_attr_name: "),
    "a sparse tensor": (attribute(sparse_tensor=onnx.SparseTensorProto()), ".sparse_tensor: exp"),
    "a tensor in a node": (
        lambda m: attribute(t=elsewhere(m))(m),
        f"tensor 'c': {STORED}s.bin, found '/etc/passwd'",
    ),
    "tensors in a node": (
        lambda m: attribute(tensors=[TensorProto(), elsewhere(m)])(m),
        f"tensor 'c': {STORED}s.bin, found '/etc/passwd'",
    ),
    "an absolute path": (place("location", "/w/weights.bin"), STORED),
    "a path upwards": (place("location", "../weights.bin"), STORED),
    "a path that comes back": (place("location", "./weights.bin"), STORED),
    "another file": (place("location", "manifest.json"), STORED),
    "memory of the process": (place("location", "*/_ORT_MEM_ADDR_/*"), STORED),
    "no path": (place("location", None), f"tensor 'w': {STORED}"),
    "no offset": (place("offset", None), WITHIN),
    "no length": (place("length", None), WITHIN),
    "an offset before the file": (place("offset", "-1"), WITHIN),
    "an offset behind the file": (place("offset", "85"), WITHIN),
    "an offset that is no number": (place("offset", "6e1"), WITHIN),
    "an offset with a space": (place("offset", " 64"), WITHIN),
    "an offset in other digits": (place("offset", "٦٤"), WITHIN),
    "an offset that overflows": (place("offset", str(2**64 - 20)), WITHIN),
    "an endless offset": (place("offset", "9" * 5000), WITHIN),
    "a length beyond the file": (place("length", "21"), WITHIN),
    "a place that is said twice": (
        lambda m: m.graph.initializer[0].external_data.add(key="location", value="weights.bin"),
        "tensor 'w': expected its location, offset and length, once each",
    ),
    "a place with a checksum": (
        lambda m: m.graph.initializer[0].external_data.add(key="checksum", value="1"),
        "expected its location, offset and length, once each",
    ),
    "a place without saying that it is outside": (
        lambda m: (
            m.graph.initializer[0].ClearField("data_location"),
            place("location", "/etc/passwd")(m),
        ),
        STORED,
    ),
    "part of a tensor": (
        lambda m: m.graph.initializer[0].segment.MergeFrom(TensorProto.Segment(begin=1)),
        "TensorProto.segment: expected none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    change, expected = REFUSED[name]
    changed = model()
    change(changed)
    (problem,) = problems_of(changed)
    assert expected in problem and len(problem) < 300


def test_a_second_graph_in_one_file() -> None:
    """Readers would merge both."""
    second = ModelProto()
    second.graph.node.append(helper.make_node("Loop", ["x"], ["z"]))
    data = model().SerializeToString() + second.SerializeToString()
    merged = onnx.load_from_string(data)
    assert [n.op_type for n in merged.graph.node] == ["Add", "Loop"]
    (problem,) = graph_problems(data, 84)
    assert "ModelProto.graph is there twice" in problem


def test_an_operator_that_is_said_twice() -> None:
    """Readers take the last."""
    data = helper.make_node("Add", [], []).SerializeToString() + b"\x22\x04Loop"
    assert onnx.NodeProto.FromString(data).op_type == "Loop"
    graph = b"\x0a" + bytes([len(data)]) + data
    (problem,) = graph_problems(b"\x3a" + bytes([len(graph)]) + graph, None)
    assert "NodeProto.op_type is there twice" in problem


def test_each_problem_is_said_once_and_not_all_of_a_thousand() -> None:
    many = model()
    for index in range(1000):
        node(f"Loop{index % 20}")(many)
    problems = problems_of(many)
    assert len(problems) == 9 and problems[0].startswith("operator 'Loop0': ")
    assert problems[-1] == "and more"
    long = model()
    node("x" * 10**5)(long)
    assert len(problems_of(long)[0]) < 300


def test_a_graph_larger_than_any() -> None:
    data = b"\x32\x80\x80\x80\x02" + bytes(1 << 22)  # a doc_string
    (problem,) = graph_problems(data, None)
    assert problem == "expected a graph of at most 4194304 bytes, found 4194309"
