"""Converting the opset, and removing operators that change nothing.

Such operators would hide patterns from the fusions.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    InlinePass,
    LiftConstantsToInitializersPass,
    NameFixPass,
    RemoveUnusedNodesPass,
)
from onnxscript import optimizer
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.version_converter import ConvertVersionPass

from ..checking.interface import remove_identities
from ..graph_pass import Changes, FusionRule, GraphPass, PassError
from ..graph_values import constant, describe, infer_shapes, made_by

OPSET = 23
"""The opset of fused graphs, the first with Attention and RMSNormalization."""


class _UpgradeOpset(GraphPass):
    """Converts an older graph to opset 23: below opset 18 with ONNX's version converter."""

    name = "opset"
    ensures = frozenset({f"opset {OPSET}"})

    def apply(self, model: ir.Model) -> Changes:
        before = model.opset_imports.get("")
        if before is None:
            raise PassError(
                f"expected a graph of ONNX operators, found {dict(model.opset_imports)}"
            )
        if before >= OPSET:
            return Changes(0)
        try:
            ConvertVersionPass(OPSET, fallback=True)(model)
        except Exception as error:  # the converters' error types share no base
            raise PassError(f"expected opset {OPSET}, found {before}: {error}") from error
        if model.opset_imports.get("") != OPSET:
            raise PassError(
                f"expected opset {OPSET}, found {before}, from which ONNX's version converter "
                "cannot convert this graph; export it with opset 18 or later"
            )
        # The IR version released with opset 23.
        model.ir_version = max(model.ir_version or 0, 11)
        infer_shapes(model)
        return Changes(1)


OPSET_PASS = _UpgradeOpset()


class _ToInput(FusionRule):
    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        return op.Identity(x)


class _SameShape(_ToInput):
    def __init__(self, operator: str) -> None:
        super().__init__(f"no-op-{operator.lower()}")
        self.operator = operator

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return getattr(op, self.operator)(x, shape, _outputs=["y"])

    def refusal(self, context: Any, x: ir.Value, shape: ir.Value, y: ir.Value) -> str:
        if x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
            return f"expected known shapes, found {describe(x)}, {describe(y)}"
        unlike = [
            (a, b)
            for a, b in zip(x.shape, y.shape, strict=True)
            if a != b or (not isinstance(a, int) and a.value is None)
        ]
        # A Reshape keeps the number of elements, so one unknown axis follows from the others.
        if len(unlike) > (1 if self.operator == "Reshape" else 0) or any(
            isinstance(a, int) and isinstance(b, int) for a, b in unlike
        ):
            return f"the shape changes from {x.shape} to {y.shape}"
        return ""


class _TransposeChain(FusionRule):
    name = "transpose-chain"

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Transpose(op.Transpose(x, _outputs=["y"]), _outputs=["z"])

    def refusal(self, context: Any, y: ir.Value, z: ir.Value, **_: Any) -> str:
        inner, outer = _order(y), _order(z)
        if inner is None or outer is None:
            return "expected Transposes with a perm attribute"
        self.order = [inner[axis] for axis in outer]
        return ""

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        if self.order == sorted(self.order):
            return op.Identity(x)
        return op.Transpose(x, perm=self.order)


class _SameOrder(_ToInput):
    name = "no-op-transpose"

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Transpose(x, _outputs=["y"])

    def refusal(self, context: Any, y: ir.Value, **_: Any) -> str:
        order = _order(y)
        kept = order is not None and order == sorted(order)
        return "" if kept else f"the order of axes changes to {order}"


class _SameType(_ToInput):
    name = "no-op-cast"

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Cast(x, _outputs=["y"])

    def refusal(self, context: Any, x: ir.Value, y: ir.Value) -> str:
        kept = x.dtype is not None and int(x.dtype) == made_by(y).attributes.get_int("to", 0)
        return "" if kept else f"the type changes from {x.dtype}"


class _FlattenedSoftmax(FusionRule):
    """Reshape(Softmax(Flatten(x))), which ONNX's converter writes for opset 13 -> Softmax(x)."""

    name = "flattened-softmax"

    def pattern(self, op: Any, x: Any) -> Any:
        softmax = op.Softmax(op.Flatten(x, _outputs=["flat"]), _outputs=["softmax"])
        return op.Reshape(softmax, op.Shape(x))

    def refusal(self, context: Any, x: ir.Value, flat: ir.Value, softmax: ir.Value) -> str:
        axis = made_by(flat).attributes.get_int("axis", 1)
        last = made_by(softmax).attributes.get_int("axis", -1)
        if x.shape is None or axis not in (-1, len(x.shape) - 1) or last not in (-1, 1):
            return f"expected a Softmax over the last axis, found from {axis} on"
        return ""

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        return op.Softmax(x, axis=-1)


class _InferenceDropout(_ToInput):
    name = "dropout"

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Dropout(x, _allow_other_inputs=True, _outputs=["y"])

    def refusal(self, context: Any, y: ir.Value, **_: Any) -> str:
        node = made_by(y)
        training = node.inputs[2] if len(node.inputs) > 2 else None
        value = constant(training)
        if training is not None and (value is None or bool(value.any())):
            return f"expected training_mode false, found {describe(training)}"
        read = any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:])
        return "the mask is used" if read else ""


def _order(value: ir.Value) -> list[int] | None:
    perm = made_by(value).attributes.get("perm")
    return None if perm is None else list(perm.as_ints())


ROUNDS = 8
"""Maximum number of rounds; exported graphs need two or three.

Shapes inferred in one round enable more folding in the next."""


class _Cleanup(GraphPass):
    """Removes operators that change nothing; counts them, and each round of folding."""

    name = "cleanup"
    ensures = frozenset({"clean"})

    def apply(self, model: ir.Model) -> Changes:
        matches = int(InlinePass()(model).modified)
        for _ in range(ROUNDS):
            infer_shapes(model)
            nodes = _count_nodes(model)
            rules = [
                *(_SameShape.rule("Reshape"), _SameShape.rule("Expand"), _TransposeChain.rule()),
                *(_SameOrder.rule(), _SameType.rule(), _FlattenedSoftmax.rule()),
                _InferenceDropout.rule(),
            ]
            changed = RewriteRuleSet(rules).apply_to_model(model)
            remove_identities(model)
            fold_constants_ir(model, onnx_shape_inference=True)
            RemoveUnusedNodesPass()(model)
            CommonSubexpressionEliminationPass()(model)
            changed += _count_nodes(model) < nodes
            matches += changed
            if not changed:
                break
        infer_shapes(model)
        return Changes(matches, uncounted=True)


def _count_nodes(model: ir.Model) -> int:
    return sum(map(len, model.graphs()))


CLEANUP = _Cleanup()


SMALL = 1024
"""Maximum elements of constants that folding creates: shapes, but no copies of weights."""


class Tidy(GraphPass):
    """Folds constants, merges common subexpressions, and removes unused nodes."""

    name = "tidy"

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        before = len(list(model.graph.all_nodes()))
        optimizer.fold_constants(model, input_size_limit=SMALL, output_size_limit=SMALL)
        ir.passes.Sequential(
            LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            CommonSubexpressionEliminationPass(),
        )(model)
        remove_identities(model)
        ir.passes.Sequential(RemoveUnusedNodesPass(), NameFixPass())(model)
        removed = before - len(list(model.graph.all_nodes()))
        return Changes(max(0, removed), uncounted=True)
