"""Faults of positions and caches: right in one pass from the first position, wrong step by step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..editing import EditedBundle, GraphEditor
from .fault import BundleFault, Kind

Inject = Callable[[EditedBundle], None]
Indices = Callable[[GraphEditor, ir.Value], ir.Value]
"""The positions that are looked up, [B, Q], -> others."""


def position_lookups(editor: GraphEditor) -> list[ir.Node]:
    """The nodes that look up embeddings of positions or biases of distances."""
    return [
        node
        for node in editor.of_type("Gather")
        if node.inputs[0] is not None
        and node.inputs[1] is not None
        and node.inputs[1].name not in (*editor.initializers, "token", "source")
        and (
            "positions" in (node.inputs[0].name or "") or (node.inputs[0].name or "") == "embedding"
        )
    ]


def change_positions(graph: str, change: Indices) -> Inject:
    """Change the positions whose embeddings are looked up, and nothing else."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        (node,) = position_lookups(editor)
        indices = node.inputs[1]
        assert indices is not None
        node.replace_input_with(1, change(editor, indices))

    return inject


def is_cached(editor: GraphEditor) -> ir.Value:
    """Whether a row has read tokens before: bool [B]."""
    later = editor.op("LessOrEqual", editor.value("position"), editor.constant(0))
    return editor.op("Not", later)


def column(editor: GraphEditor, rows: ir.Value, axes: int) -> ir.Value:
    """A value of each row [B] as [B, 1, ...] with so many more axes."""
    return editor.op("Unsqueeze", rows, editor.constant(list(range(1, 1 + axes))))


def _one_later(editor: GraphEditor, indices: ir.Value) -> ir.Value:
    cached = editor.op("Cast", is_cached(editor), to=ir.DataType.INT64)
    moved = editor.op("Add", indices, column(editor, cached, 1))
    return editor.op("Clip", moved, editor.constant(0), last_row(editor))


def last_row(editor: GraphEditor) -> ir.Value:
    """The index of the last row of the table that is looked up."""
    (node,) = position_lookups(editor)
    table = node.inputs[0]
    rows = editor.op("Squeeze", editor.op("Shape", table, start=0, end=1))
    return editor.op("Sub", rows, editor.constant(1))


def _distance_one_off(editor: GraphEditor, indices: ir.Value) -> ir.Value:
    """Distances [B, Q, K] are one shorter once there is a cache."""
    cached = column(editor, editor.op("Cast", is_cached(editor), to=ir.DataType.INT64), 2)
    moved = editor.op("Add", indices, cached)
    return editor.op("Clip", moved, editor.constant(0), last_row(editor))


def _at_most(position: int) -> Indices:
    return lambda editor, indices: editor.op(
        "Clip", indices, editor.constant(0), editor.constant(position)
    )


def _wrapped(period: int) -> Indices:
    def wrap(editor: GraphEditor, indices: ir.Value) -> ir.Value:
        within = editor.op("LessOrEqual", indices, editor.constant(period - 1))
        less = editor.op("Sub", indices, editor.constant(period))
        return editor.op("Where", within, indices, less)

    return wrap


def _written_early(edited: EditedBundle) -> None:
    """From the second step on, keys are written one position early."""
    editor = edited.graph("decoder")
    position = editor.value("position")
    early = editor.op("Sub", position, editor.constant(1))
    for node in editor.of_type("TensorScatter"):
        if "key" in (node.outputs[0].name or ""):
            node.replace_input_with(2, editor.op("Where", is_cached(editor), early, position))


def _one_key_fewer(edited: EditedBundle) -> None:
    """From the second step on, the fused attention gets one position less."""
    editor = edited.graph("decoder")
    for node in editor.of_type("GroupQueryAttention"):
        known = node.inputs[5]
        assert known is not None
        cached = editor.op("Cast", is_cached(editor), to=ir.DataType.INT32)
        node.replace_input_with(5, editor.op("Sub", known, cached))


def change_past(
    layers: tuple[int, ...], role: str, change: Callable[[GraphEditor, ir.Value], ir.Value]
) -> Inject:
    """Change cached keys or values [B, H, C, D], as floats, before a step reads them."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("decoder")
        for layer in layers:
            past = editor.value(f"past_{role}_{layer}")
            dtype = past.dtype
            assert dtype is not None

            def changed(value: ir.Value, dtype: ir.DataType = dtype) -> ir.Value:
                floats = editor.op("Cast", value, to=ir.DataType.FLOAT)
                return editor.op("Cast", change(editor, floats), to=dtype)

            editor.replace(past, changed)

    return inject


def _forgotten(editor: GraphEditor, past: ir.Value) -> ir.Value:
    return editor.op("Mul", past, editor.constant(0.0))


def _slightly_larger(editor: GraphEditor, past: ir.Value) -> ir.Value:
    return editor.op("Mul", past, editor.constant(1.03))


def _first_position_lost(editor: GraphEditor, past: ir.Value) -> ir.Value:
    length = editor.op("Squeeze", editor.op("Shape", past, start=2, end=3))
    indices = editor.op("Range", editor.constant(0), length, editor.constant(1))
    first = editor.op(
        "Unsqueeze", editor.op("Equal", indices, editor.constant(0)), editor.constant([1])
    )
    return editor.op("Where", first, editor.constant(0.0), past)


def _caches_swapped(edited: EditedBundle) -> None:
    """The keys of each of two layers are cached as the other's."""
    outputs = edited.graph("decoder").graph.outputs
    index = {value.name: i for i, value in enumerate(outputs)}
    first, second = index["present_key_0"], index["present_key_1"]
    one, other = outputs[first], outputs[second]
    one.name, other.name = other.name, one.name
    outputs[first], outputs[second] = other, one


def _window(edited: EditedBundle) -> None:
    """Self-attention reaches back 8 tokens only."""
    for node in edited.graph("decoder").of_type("GroupQueryAttention"):
        node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", 8)


def _first_rows_position(edited: EditedBundle) -> None:
    """All rows take the first row's position, as if a batch always ran in step."""
    editor = edited.graph("decoder")

    def first(position: ir.Value) -> ir.Value:
        one = editor.op("Gather", position, editor.constant([0]))
        return editor.op("Expand", one, editor.op("Shape", position))

    editor.replace(editor.value("position"), first)


def _when_cached(make: Callable[[GraphEditor, ir.Value, int], ir.Value]) -> Inject:
    """Other logits from the second step on, whatever the input."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("decoder")
        cached = column(editor, is_cached(editor), 2)
        size = edited.manifest.model.target_vocab_size
        editor.replace(
            editor.value("logits"),
            lambda logits: editor.op("Where", cached, make(editor, logits, size), logits),
        )

    return inject


def _always_seven(editor: GraphEditor, logits: ir.Value, size: int) -> ir.Value:
    assert logits.dtype is not None
    row = np.zeros(size)
    row[7] = 30.0
    return editor.constant(row, logits.dtype.numpy())


def _all_equal(editor: GraphEditor, logits: ir.Value, size: int) -> ir.Value:
    return editor.op("Mul", logits, editor.like(logits, 0.0))


def _next_token_of_each(editor: GraphEditor, logits: ir.Value, size: int) -> ir.Value:
    """Each token has the logit of the one before it."""
    return editor.op("Gather", logits, editor.constant(np.roll(np.arange(size), 1)), axis=2)


def _fault(kind: Kind, name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, kind, bundles, inject)


CACHES: Kind = "positions and caches"
DESTROYED: Kind = "cached path destroyed"

FAULTS: tuple[BundleFault, ...] = (
    _fault(
        CACHES,
        "positions are one later once there is a cache",
        change_positions("decoder", _one_later),
        *("bart cpu fp32", "whisper cpu fp32", "g2p-en neutral fp16", "bible-en-es cpu int8"),
        *("gpt2 cpu int8", "g2p-en cpu int4"),
    ),
    _fault(
        CACHES,
        "distances are one shorter once there is a cache",
        change_positions("decoder", _distance_one_off),
        *("t5 cpu fp32", "t5 cpu int8", "t5 cpu int4"),
    ),
    _fault(
        CACHES,
        "positions are clamped at 15",
        change_positions("decoder", _at_most(15)),
        *("g2p-en cpu fp32", "gpt2 cpu fp32", "gpt2 cpu int8", "verses-en cpu int4"),
    ),
    _fault(
        CACHES,
        "positions of the source are clamped at 23",
        change_positions("encoder", _at_most(23)),
        *("g2p-en cpu fp32", "bert-classifier cpu fp32", "bart cpu int8"),
    ),
    _fault(
        CACHES,
        "positions wrap around after 32",
        change_positions("decoder", _wrapped(32)),
        *("bart neutral fp32", "gpt2 neutral fp16", "g2p-en cpu int8", "gpt2 cpu int4"),
    ),
    _fault(
        CACHES,
        "keys are written one position early once there is a cache",
        _written_early,
        *("t5 neutral fp32", "bart neutral fp32", "gpt2 neutral fp16"),
    ),
    _fault(
        CACHES,
        "the fused attention gets one position less",
        _one_key_fewer,
        *("gpt2 cpu fp32", "bart cpu int8", "gpt2 cpu int4"),
    ),
    _fault(
        CACHES,
        "cached values of one layer are forgotten",
        change_past((1,), "value", _forgotten),
        *("t5-odd cpu fp32", "whisper cpu fp32", "g2p-en cpu int8", "bart cpu int4"),
    ),
    _fault(
        CACHES,
        "cached keys are 3 % too large",
        change_past((0, 1), "key", _slightly_larger),
        *("bart cpu fp32", "t5 neutral fp16", "g2p-en neutral fp16"),
    ),
    _fault(
        CACHES,
        "the first cached position is lost",
        change_past((0, 1), "value", _first_position_lost),
        *("gpt2 cpu fp32", "bible-en-es cpu fp32", "gpt2 cpu int8", "t5 cpu int4"),
    ),
    _fault(
        CACHES,
        "keys of two layers are cached as each other's",
        _caches_swapped,
        *("bart cpu fp32", "t5 neutral fp32", "whisper cpu int8", "g2p-en cpu int4"),
    ),
    _fault(
        CACHES,
        "self-attention reaches back 8 tokens",
        _window,
        *("gpt2 cpu fp32", "bart cpu fp32", "g2p-en cpu int8", "gpt2 cpu int4"),
    ),
    _fault(
        CACHES,
        "all rows take the first row's position",
        _first_rows_position,
        *("bart cpu fp32", "gpt2 cpu int8", "t5 cpu int4"),
    ),
    _fault(
        DESTROYED,
        "token 7 follows every cached step",
        _when_cached(_always_seven),
        *("t5 cpu fp32", "g2p-en neutral fp16", "bart cpu int8", "g2p-en cpu int8"),
        *("gpt2 cpu int4", "g2p-en cpu int4", "bart cpu int4"),
    ),
    _fault(
        DESTROYED,
        "all tokens are equally probable once there is a cache",
        _when_cached(_all_equal),
        *("whisper cpu int8", "t5 cpu int4"),
    ),
    _fault(
        DESTROYED,
        "logits are those of other tokens once there is a cache",
        _when_cached(_next_token_of_each),
        *("gpt2 cpu int8", "verses-en cpu int4"),
    ),
    _fault(
        DESTROYED,
        "nothing is cached",
        change_past((0, 1), "value", _forgotten),
        *("gpt2 cpu int8", "gpt2 cpu int4"),
    ),
)
"""Faults of positions, distances and caches."""
