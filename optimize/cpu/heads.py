"""The patterns and checks that attention fusions share: splitting and merging heads, the scale."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult

LARGEST_MASK_BIAS = -1e4
"""The largest bias that masks a key, which ONNX Runtime's own operators add by default."""


def split_heads(op: Any, x: Any, split: Any, name: str) -> Any:
    """Return the pattern [B, T, H * Dh] -> [B, T, H, Dh], bound to the name, -> [B, H, T, Dh]."""
    return op.Transpose(op.Reshape(x, split, _outputs=[name]), perm=[0, 2, 1, 3])


def merge_heads(op: Any, attended: Any, merge: Any) -> Any:
    """Return the pattern [B, H, T, Dh] -> [B, T, H * Dh]."""
    return op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), merge)


def known_heads(split: ir.Value) -> tuple[int, int] | None:
    """Return the number and size of heads of a value [B, T, H, Dh]; None if unknown."""
    shape = split.shape
    if shape is None or len(shape) != 4:
        return None
    heads, size = shape[2], shape[3]
    return (heads, size) if isinstance(heads, int) and isinstance(size, int) else None


def check_heads(attended: ir.Value, split: ir.Value) -> MatchResult:
    """Fail for an Attention with unknown heads.

    Fail also for attributes that have no direct equivalent in ONNX Runtime's own operators.
    """
    result, node = MatchResult(), attended.producer()
    assert node is not None
    if unknown := sorted(set(node.attributes) - {"scale"}):
        return result.fail(f"expected no attributes except scale, found {unknown}", attended)
    if known_heads(split) is None:
        return result.fail(
            f"expected heads [B, Q, H, Dh] of known size, found {split.shape}", split
        )
    return result


def check_value_size(attended: ir.Value, operator: str) -> MatchResult:
    """Fail for values of another size than keys, which the operator does not take."""
    result, node = MatchResult(), attended.producer()
    assert node is not None
    key, value = (_last_size(node.inputs[index]) for index in (1, 2))
    if key != value:
        reason = f"expected values of the size of keys, {key}, as {operator} requires, found"
        return result.fail(f"{reason} {value}", attended)
    return result


def _last_size(value: ir.Value | None) -> int | None:
    """Return the size of the last axis, if it is known."""
    shape = None if value is None else value.shape
    return shape[-1] if shape is not None and isinstance(shape[-1], int) else None


def attributes(attended: ir.Value, split: ir.Value) -> dict[str, Any]:
    """Return number of heads and scale, as attributes of ONNX Runtime's own operators."""
    node, heads = attended.producer(), known_heads(split)
    assert node is not None and heads is not None
    scale = node.attributes.get_float("scale", None)
    return {"num_heads": heads[0]} | ({} if scale is None else {"scale": scale})
