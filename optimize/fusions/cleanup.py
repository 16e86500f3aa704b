"""Converting the opset, and removing operators that change nothing.

Such operators would hide patterns from the fusions. After fusions, `Tidy` folds constants and
merges common subexpressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from onnxscript.rewriter import MatchResult, RewriteRule, RewriteRuleClassBase, RewriteRuleSet
from onnxscript.version_converter import ConvertVersionPass

from ..checking.interface import remove_identities
from ..graph_pass import ROUNDING, Changes, PassError, Property
from ..graph_values import constant, describe, infer_shapes, make_rule

OPSET = 23
"""The opset of fused graphs, the first with Attention and RMSNormalization."""


@dataclass(frozen=True)
class UpgradeOpset:
    """Converts a graph of an older opset to opset 23.

    From opset 18 on it uses onnxscript's version converter, below that ONNX's.
    """

    name: str = "opset"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset({f"opset {OPSET}"})
    tolerance: float = 1e-5

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
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


OPSET_PASS = UpgradeOpset()


class SameShape(RewriteRuleClassBase):
    """A Reshape or Expand that keeps the shape -> its input."""

    def __init__(self, operator: str) -> None:
        super().__init__(f"no-op-{operator.lower()}", remove_nodes=False)
        self.operator = operator

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        """Return the pattern to match."""
        return getattr(op, self.operator)(x, shape, _outputs=["y"])

    def check(self, context: Any, x: ir.Value, shape: ir.Value, y: ir.Value) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        if x.shape is None or y.shape is None or len(x.shape) != len(y.shape):
            return result.fail(f"expected known shapes, found {describe(x)}, {describe(y)}", y)
        unlike = [
            (a, b)
            for a, b in zip(x.shape, y.shape, strict=True)
            if a != b or (not isinstance(a, int) and a.value is None)
        ]
        # A Reshape keeps the number of elements, so one unknown axis follows from the others.
        if len(unlike) > (1 if self.operator == "Reshape" else 0) or any(
            isinstance(a, int) and isinstance(b, int) for a, b in unlike
        ):
            return result.fail(f"the shape changes from {x.shape} to {y.shape}", y)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        return op.Identity(x)


class TransposeChain(RewriteRuleClassBase):
    """Two successive Transposes -> one or none."""

    def __init__(self) -> None:
        super().__init__("transpose-chain", remove_nodes=False)

    def pattern(self, op: Any, x: Any) -> Any:
        """Return the pattern to match."""
        return op.Transpose(op.Transpose(x, _outputs=["y"]), _outputs=["z"])

    def check(self, context: Any, y: ir.Value, z: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        orders = [_order(value) for value in (y, z)]
        if orders[0] is None or orders[1] is None:
            return result.fail("expected Transposes with a perm attribute", z)
        self.order = [orders[0][axis] for axis in orders[1]]
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        if self.order == sorted(self.order):
            return op.Identity(x)
        return op.Transpose(x, perm=self.order)


class SameOrder(RewriteRuleClassBase):
    """A Transpose that keeps the order of the axes -> its input."""

    def __init__(self) -> None:
        super().__init__("no-op-transpose", remove_nodes=False)

    def pattern(self, op: Any, x: Any) -> Any:
        """Return the pattern to match."""
        return op.Transpose(x, _outputs=["y"])

    def check(self, context: Any, y: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result, order = MatchResult(), _order(y)
        if order is None or order != sorted(order):
            return result.fail(f"the order of axes changes to {order}", y)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        return op.Identity(x)


class SameType(RewriteRuleClassBase):
    """A Cast that keeps the type -> its input."""

    def __init__(self) -> None:
        super().__init__("no-op-cast", remove_nodes=False)

    def pattern(self, op: Any, x: Any) -> Any:
        """Return the pattern to match."""
        return op.Cast(x, _outputs=["y"])

    def check(self, context: Any, x: ir.Value, y: ir.Value) -> MatchResult:
        """Check what the pattern cannot express."""
        result, node = MatchResult(), y.producer()
        to = node.attributes.get_int("to", 0) if node is not None else 0
        if x.dtype is None or int(x.dtype) != to:
            return result.fail(f"the type changes from {x.dtype}", y)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        return op.Identity(x)


class FlattenedSoftmax(RewriteRuleClassBase):
    """Reshape(Softmax(Flatten(x))) -> Softmax(x), over the last axis.

    ONNX's version converter writes it for opset 13.
    """

    def __init__(self) -> None:
        super().__init__("flattened-softmax", remove_nodes=False)

    def pattern(self, op: Any, x: Any) -> Any:
        """Return the pattern to match."""
        softmax = op.Softmax(op.Flatten(x, _outputs=["flat"]), _outputs=["softmax"])
        return op.Reshape(softmax, op.Shape(x))

    def check(self, context: Any, x: ir.Value, flat: ir.Value, softmax: ir.Value) -> MatchResult:
        """Check what the pattern cannot express."""
        result = MatchResult()
        flatten, node = flat.producer(), softmax.producer()
        assert flatten is not None
        assert node is not None
        axis, last = flatten.attributes.get_int("axis", 1), node.attributes.get_int("axis", -1)
        if x.shape is None or axis not in (-1, len(x.shape) - 1) or last not in (-1, 1):
            return result.fail(f"expected a Softmax over the last axis, found from {axis} on", flat)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        return op.Softmax(x, axis=-1)


class InferenceDropout(RewriteRuleClassBase):
    """A Dropout in inference mode whose mask is not read -> its input."""

    def __init__(self) -> None:
        super().__init__("dropout", remove_nodes=False)

    def pattern(self, op: Any, x: Any) -> Any:
        """Return the pattern to match."""
        return op.Dropout(x, _allow_other_inputs=True, _outputs=["y"])

    def check(self, context: Any, y: ir.Value, **_: Any) -> MatchResult:
        """Check what the pattern cannot express."""
        result, node = MatchResult(), y.producer()
        assert node is not None
        training = node.inputs[2] if len(node.inputs) > 2 else None
        value = constant(training)
        if training is not None and (value is None or bool(value.any())):
            return result.fail(f"expected training_mode false, found {describe(training)}", y)
        if any(mask.uses() or mask.is_graph_output() for mask in node.outputs[1:]):
            return result.fail("the mask is used", y)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        """Return the replacement."""
        return op.Identity(x)


def _order(value: ir.Value) -> list[int] | None:
    node = value.producer()
    perm = node.attributes.get("perm") if node is not None else None
    return None if perm is None else list(perm.as_ints())


def _rules() -> Sequence[RewriteRule]:
    return [
        make_rule(SameShape, "Reshape"),
        make_rule(SameShape, "Expand"),
        make_rule(TransposeChain),
        make_rule(SameOrder),
        make_rule(SameType),
        make_rule(FlattenedSoftmax),
        make_rule(InferenceDropout),
    ]


ROUNDS = 8
"""Maximum number of rounds; exported graphs need two or three.

Shapes inferred in one round enable more folding in the next."""


@dataclass(frozen=True)
class Cleanup:
    """Inlines functions, folds constants and shapes, and removes operators that change nothing.

    It counts the operators removed, and one for each round in which folding removed nodes.
    """

    name: str = "cleanup"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset({"clean"})
    tolerance: float = 1e-5

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place."""
        matches = int(InlinePass()(model).modified)
        for _ in range(ROUNDS):
            infer_shapes(model)
            nodes = _count_nodes(model)
            changed = RewriteRuleSet(list(_rules())).apply_to_model(model)
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


CLEANUP = Cleanup()


SMALL = 1024
"""Maximum elements of constants that folding creates: shapes, but no copies of weights."""


@dataclass(frozen=True)
class Tidy:
    """Folds constants, merges common subexpressions, and removes unused nodes.

    It counts the nodes removed.
    """

    name: str = "tidy"
    requires: frozenset[Property] = frozenset()
    ensures: frozenset[Property] = frozenset()
    tolerance: float = ROUNDING

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
