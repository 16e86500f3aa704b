"""Recurrent units for a single query, without the loop of ONNX `Scan` and `GRU`.

The decoder of an engine takes one token per step. TensorRT would run a loop of one round, which it
neither fuses with its surroundings nor captures as a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ..graph_pass import FusionRule, RulePass
from ..graph_values import made_by

STEP = ("Mul", "Add", "Identity")
"""The operators of the body of `Scan` that the exporter writes: f_t * c_(t-1) + u_t."""
RECURRENT = frozenset({"Scan", "GRU"})


class _SingleScan(FusionRule):
    """Scan (opset 24) over one query -> c_t = f_t * c_(t-1) + u_t (Kim et al. 2019, section 4.1).

    The state is [B, D], gates and updates are [B, 1, D].
    """

    name = "SingleScan"

    def pattern(self, op: Any, state: Any, forget: Any, update: Any) -> Any:
        return op.Scan(
            state, forget, update, _allow_other_attributes=True, _outputs=["present", "states"]
        )

    def refusal(self, context: Any, forget: ir.Value, present: ir.Value, **_: Any) -> str:
        node = made_by(present)
        body = tuple(each.op_type for each in node.attributes["body"].as_graph())
        axes = [node.attributes.get_ints(f"scan_{side}_axes") for side in ("input", "output")]
        if body != STEP or axes != [(1, 1), (1,)]:
            return f"expected the body {', '.join(STEP)} along axis 1, found {', '.join(body)}"
        return _not_single(forget, 1)

    def rewrite(
        self, op: Any, state: ir.Value, forget: ir.Value, update: ir.Value, **_: Any
    ) -> Any:
        axis = op.Constant(value_ints=[1])
        gated = op.Mul(op.Squeeze(forget, axis), state)
        present = op.Add(gated, op.Squeeze(update, axis))
        return present, op.Unsqueeze(present, axis)


class _SingleGRU(FusionRule):
    """GRU (opset 22, linear_before_reset) of one query -> products and gates.

    x is [1, B, D], weights [1, 3 D, D], the bias [1, 6 D] and the state [1, B, D]; each holds the
    update gate, the reset gate and the new state (Cho et al. 2014, section 2.3).
    """

    name = "SingleGRU"

    def pattern(self, op: Any, x: Any, of_input: Any, of_state: Any, bias: Any, state: Any) -> Any:
        return op.GRU(
            *(x, of_input, of_state, bias, None, state),
            _allow_other_attributes=True,
            _outputs=["states", "present"],
        )

    def refusal(self, context: Any, x: ir.Value, present: ir.Value, **_: Any) -> str:
        attributes = made_by(present).attributes
        if set(attributes) != {"hidden_size", "linear_before_reset"}:
            return f"expected hidden_size and linear_before_reset, found {', '.join(attributes)}"
        if attributes.get_int("linear_before_reset") != 1:
            return "expected linear_before_reset=1"
        return _not_single(x, 0)

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        of_input: ir.Value,
        of_state: ir.Value,
        bias: ir.Value,
        state: ir.Value,
        present: ir.Value,
        **_: Any,
    ) -> Any:
        size = made_by(present).attributes.get_int("hidden_size")
        first, last = op.Constant(value_ints=[0]), op.Constant(value_ints=[-1])

        def part(value: Any, begin: int, end: int) -> Any:
            bounds = (op.Constant(value_ints=[number * size]) for number in (begin, end))
            return op.Slice(value, *bounds, last)

        def gates(value: ir.Value, weight: ir.Value, begin: int) -> Any:
            own = part(op.Squeeze(bias, first), begin, begin + 3)
            return op.Gemm(op.Squeeze(value, first), op.Squeeze(weight, first), own, transB=1)

        of_x, of_h = gates(x, of_input, 0), gates(state, of_state, 3)
        update, reset = (
            op.Sigmoid(op.Add(part(of_x, gate, gate + 1), part(of_h, gate, gate + 1)))
            for gate in (0, 1)
        )
        new = op.Tanh(op.Add(part(of_x, 2, 3), op.Mul(reset, part(of_h, 2, 3))))
        kept = op.Mul(update, op.Sub(op.Squeeze(state, first), new))
        after = op.Unsqueeze(op.Add(new, kept), first)
        return op.Unsqueeze(after, first), after


def _not_single(value: ir.Value, axis: int) -> str:
    """Return why a value does not have one query, if it does not."""
    if value.shape is None or value.shape[axis] != 1:
        return f"expected one query on axis {axis}, found {value.shape}"
    return ""


SINGLE_STEP = RulePass(
    "single-step",
    lambda: [_SingleScan.rule(), _SingleGRU.rule()],
    lambda node: node.op_type in RECURRENT,
)
