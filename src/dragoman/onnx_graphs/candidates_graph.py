"""Makes the graph that selects the most probable next tokens, so that logits stay on a GPU.

It has no weights, and depends only on sizes and number formats of the decoder's logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.runtime.format.contract import GraphSpec, TensorSpec

FILE = "candidates.onnx"
MOST = 32
"""Candidates of each row that are not suppressed: enough for 16 beams with one end token."""

OPSET = 24
IR_VERSION = 10


def candidates_spec(decoder: GraphSpec, suppressed: Sequence[int]) -> GraphSpec:
    """Specify the graph for a decoder.

    Args:
        suppressed: tokens that are never chosen, for which there are additional candidates
    """
    logits = decoder.output("logits")
    batch, _, vocabulary = logits.shape
    shape = (batch, min(MOST + len(suppressed), int(vocabulary)))
    return GraphSpec(
        FILE,
        (logits,),
        (
            TensorSpec("candidate_token", "candidate_token", "int64", shape),
            TensorSpec("candidate_log_probability", "candidate_log_probability", "float32", shape),
        ),
    )


def candidates_graph(spec: GraphSpec) -> ir.Model:
    """Make the graph from logits [B, Q, V] to the best tokens after the last query.

    Its outputs are the tokens int64 [B, K], best first, and their log-probabilities float32 [B, K]
    among all tokens.
    """
    (logits,) = (_value(tensor) for tensor in spec.inputs)
    count = int(spec.output("candidate_token").shape[1])
    last, best = _constant("last", np.array(-1)), _constant("count", np.array([count]))
    gather = ir.node("Gather", [logits, last], {"axis": 1})
    cast = ir.node("Cast", gather.outputs, {"to": ir.DataType.FLOAT})
    softmax = ir.node("LogSoftmax", cast.outputs, {"axis": -1})
    tokens, log_probabilities = (_value(tensor) for tensor in spec.outputs)
    select = ir.node(
        "TopK", [softmax.outputs[0], best], {"axis": -1}, outputs=[log_probabilities, tokens]
    )
    graph = ir.Graph(
        [logits],
        [tokens, log_probabilities],
        nodes=[gather, cast, softmax, select],
        initializers=[last, best],
        opset_imports={"": OPSET},
        name="candidates",
    )
    return ir.Model(graph, ir_version=IR_VERSION)


def _value(tensor: TensorSpec) -> ir.Value:
    dtype = ir.DataType[tensor.dtype.upper().replace("FLOAT32", "FLOAT")]
    return ir.Value(name=tensor.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(dtype))


def _constant(name: str, numbers: NDArray[np.int64]) -> ir.Value:
    tensor = ir.tensor(numbers, name=name)
    return ir.Value(
        name=name,
        shape=ir.Shape(numbers.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
