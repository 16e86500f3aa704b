"""What both attentions of this target ask of the graph: heads split and merged, a known scale."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult

MASKED = -1e4
"""What ONNX Runtime's own operators add to the score of a key that is hidden by a mask."""


def split_heads(op: Any, x: Any, split: Any, name: str) -> Any:
    """The pattern [B, T, H * Dh] -> [B, T, H, Dh], which gets the name, -> [B, H, T, Dh]."""
    return op.Transpose(op.Reshape(x, split, _outputs=[name]), perm=[0, 2, 1, 3])


def merge_heads(op: Any, attended: Any, merge: Any) -> Any:
    """The pattern [B, H, T, Dh] -> [B, T, H * Dh]."""
    return op.Reshape(op.Transpose(attended, perm=[0, 2, 1, 3]), merge)


def known_heads(split: ir.Value) -> tuple[int, int] | None:
    """Number and size of heads, of a value [B, T, H, Dh]."""
    shape = split.shape
    if shape is None or len(shape) != 4:
        return None
    heads, size = shape[2], shape[3]
    return (heads, size) if isinstance(heads, int) and isinstance(size, int) else None


def check_heads(attended: ir.Value, split: ir.Value) -> MatchResult:
    """Fails on an Attention whose heads are not known, or with attributes that ONNX Runtime's own
    operators would have to be told otherwise."""
    result, node = MatchResult(), attended.producer()
    assert node is not None
    if unknown := sorted(set(node.attributes) - {"scale"}):
        return result.fail(f"expected no attributes but scale, found {unknown}", attended)
    if known_heads(split) is None:
        return result.fail(f"expected known heads [B, Q, H, Dh], found {split.shape}", split)
    return result


def attributes(attended: ir.Value, split: ir.Value) -> dict[str, Any]:
    """Number of heads and scale, as ONNX Runtime's own operators take them."""
    node, heads = attended.producer(), known_heads(split)
    assert node is not None and heads is not None
    scale = node.attributes.get_float("scale", None)
    return {"num_heads": heads[0]} | ({} if scale is None else {"scale": scale})
