"""Makes the graph that selects the most probable next tokens, so that logits stay on a GPU.

It depends only on sizes and number formats of the decoder's logits, and on suppressed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.contract import GraphSpec, TensorSpec

FILE = "candidates.onnx"
MOST = 32
"""Candidates of each row: enough for 16 beams with one end token. TensorRT has at most 3,840."""

OPSET = 24
IR_VERSION = 10


def candidates_spec(decoder: GraphSpec, suppressed: Sequence[int]) -> GraphSpec:
    """Specify the graph for a decoder.

    Args:
        suppressed: tokens that are never selected
    """
    logits = decoder.output("logits")
    batch, _, vocabulary = logits.shape
    shape = (batch, max(1, min(MOST, int(vocabulary) - len(set(suppressed)))))
    return GraphSpec(
        FILE,
        (logits,),
        (
            TensorSpec("candidate_token", "candidate_token", "int64", shape),
            TensorSpec("candidate_log_probability", "candidate_log_probability", "float32", shape),
        ),
    )


def candidates_graph(spec: GraphSpec, suppressed: Sequence[int]) -> ir.Model:
    """Make the graph from logits [B, Q, V] to the best tokens after the last query.

    Its outputs are the tokens int64 [B, K], best first, and their log-probabilities float32 [B, K]
    among all tokens.

    Args:
        suppressed: tokens that are never selected, but count as possible ones in log-probabilities
    """
    (logits,) = (_value(tensor) for tensor in spec.inputs)
    count = int(spec.output("candidate_token").shape[1])
    last, best = _constant("last", np.array(-1)), _constant("count", np.array([count]))
    gather = ir.node("Gather", [logits, last], {"axis": 1})
    cast = ir.node("Cast", gather.outputs, {"to": ir.DataType.FLOAT})
    softmax = ir.node("LogSoftmax", cast.outputs, {"axis": -1})
    nodes, constants = [gather, cast, softmax], [last, best]
    if suppressed:
        allowed = np.ones(int(spec.input("logits").shape[-1]), np.bool_)
        allowed[list(suppressed)] = False
        constants += [
            _constant("allowed", allowed),
            _constant("never", np.array(-np.inf, np.float32)),
        ]
        nodes.append(ir.node("Where", [constants[2], *softmax.outputs, constants[3]]))
    tokens, log_probabilities = (_value(tensor) for tensor in spec.outputs)
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


def _value(tensor: TensorSpec) -> ir.Value:
    dtype = ir.DataType[tensor.dtype.upper().replace("FLOAT32", "FLOAT")]
    return ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(dtype))


def _constant(name: str, numbers: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(numbers, name=name)
    return ir.Value(
        name=name,
        shape=ir.Shape(numbers.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
