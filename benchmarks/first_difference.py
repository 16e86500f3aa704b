"""Where a bundle leaves its model: the first tensor, in the order of computation, that differs.

A pass keeps the names of the values that it computes in another way, so that whatever stands in
both graphs, the neutral and the optimized, can be compared by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dragoman.optimize.compare import Outputs, Runner, difference, with_outputs
from dragoman.optimize.fusions.matching import FLOATS
from dragoman.optimize.precision.observed import observe
from dragoman.optimize.samples import Samples
from dragoman.origins import module_of
from dragoman.runtime import Bundle
from dragoman.runtime.decoding.batching import Encodable

SOURCES = 4


@dataclass(frozen=True)
class FirstDifference:
    """A tensor and what makes it.

    Attributes:
        module: of the trained model, such as "decoder.layers.3.feed_forward"
        difference: relative to max(1, the tensor's largest value), as in parity
    """

    graph: str
    tensor: str
    operator: str
    module: str
    difference: float

    def __str__(self) -> str:
        return (
            f"{self.graph}, {self.tensor} ({self.operator} of {self.module}), which differs by "
            f"{self.difference:.3g}"
        )


def first_difference(
    neutral: Bundle, bundle: Bundle, sources: Sequence[Encodable], tolerance: float
) -> FirstDifference | None:
    """Compare a bundle with the neutral one that its model exports to now.

    Args:
        neutral: in fp32
        sources: token ids or features; some of them are decoded
        tolerance: see `FirstDifference.difference`

    Returns:
        None if every tensor is within the tolerance
    """
    observed = observe(neutral, sources[:SOURCES])
    for graph in ("encoder", "decoder"):
        expected, found = (
            ir.load(b.path(getattr(b.manifest, graph).file)) for b in (neutral, bundle)
        )
        makers = {o.name or "": node for node in expected.graph for o in node.outputs}
        operators = {
            o.name or "": node.op_type
            for node in found.graph
            for o in node.outputs
            if o.name in makers and o.dtype in FLOATS
        }
        before, after = (
            _run(model, list(operators), observed[graph][0].samples) for model in (expected, found)
        )
        for name, operator in operators.items():
            _, apart = difference({name: before[name]}, {name: after[name]})
            if apart > tolerance:
                return FirstDifference(graph, name, operator, module_of(makers[name]), apart)
    return None


def _run(model: ir.Model, names: list[str], samples: Samples) -> Outputs:
    return Runner(with_outputs(model, names)).run(samples)
