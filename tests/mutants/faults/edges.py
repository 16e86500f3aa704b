"""Faults at the edges: boundaries of relative buckets, and the last positions of a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..editing import EditedBundle, GraphEditor
from .fault import BundleFault
from .positions import change_positions, last_row

Inject = Callable[[EditedBundle], None]


def _before_the_end(editor: GraphEditor, indices: ir.Value) -> ir.Value:
    """Positions are clamped at the last but two."""
    most = editor.op("Sub", last_row(editor), editor.constant(2))
    return editor.op("Clip", indices, editor.constant(0), most)


def _last_is_the_one_before(editor: GraphEditor, indices: ir.Value) -> ir.Value:
    last = last_row(editor)
    before = editor.op("Sub", last, editor.constant(1))
    return editor.op("Where", editor.op("Equal", indices, last), before, indices)


def _last_of_source_lost(edited: EditedBundle) -> None:
    """A source that fills all positions loses its last token."""
    longest = edited.manifest.model.max_source_positions
    for editor in edited.editors.values():

        def lost(mask: ir.Value, editor: GraphEditor = editor) -> ir.Value:
            length = editor.op("Squeeze", editor.op("Shape", mask, start=1, end=2))
            indices = editor.op("Range", editor.constant(0), length, editor.constant(1))
            last = editor.op("Equal", indices, editor.constant(longest - 1))
            none = editor.op("Not", editor.op("Equal", mask, mask))
            return editor.where_mask(last, none, mask)

        editor.replace(editor.value("source_mask"), lost)


def _bias_table(editor: GraphEditor) -> str:
    """The name of a table of biases by distance, as the optimizer folds it."""
    return next(
        name
        for name, value in editor.initializers.items()
        if name.startswith("embedding") and value.dtype == ir.DataType.FLOAT
    )


def _boundary_moved(graph: str) -> Inject:
    """The first distance of the largest bucket is given to the bucket before it."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        name = _bias_table(editor)
        table = editor.weight(name)
        steps = np.flatnonzero(np.any(table[1:] != table[:-1], axis=1))
        table[steps[0]] = table[steps[0] + 1]
        editor.set_weight(name, table)

    return inject


def _bucket_moved(edited: EditedBundle) -> None:
    """The same in a table of buckets by distance."""
    editor = edited.graph("decoder")
    name = next(n for n in editor.initializers if n.endswith("relative_positions.bucket"))
    buckets = editor.weight(name)
    step = np.flatnonzero(buckets[1:] != buckets[:-1])[0]
    buckets[step] = buckets[step + 1]
    editor.set_weight(name, buckets)


def _largest_swapped(edited: EditedBundle) -> None:
    """The biases of the two largest distances' buckets are swapped."""
    editor = edited.graph("decoder")
    name = _bias_table(editor)
    table = editor.weight(name)
    step = int(np.flatnonzero(np.any(table[1:] != table[:-1], axis=1))[0])
    far, near = table[0].copy(), table[step + 1].copy()
    of_near = np.all(table == near, axis=1)
    table[: step + 1], table[of_near] = near, far
    editor.set_weight(name, table)


def _directions_swapped(edited: EditedBundle) -> None:
    """What lies before and after a token of the source have each other's biases."""
    editor = edited.graph("encoder")
    name = _bias_table(editor)
    editor.set_weight(name, editor.weight(name)[::-1])


def _clipped_one_earlier(edited: EditedBundle) -> None:
    """Distances are clipped one earlier, within the largest bucket."""
    editor = edited.graph("encoder")
    node = editor.of_type("Clip")[0]
    lowest, highest = node.inputs[1], node.inputs[2]
    assert lowest is not None and highest is not None
    node.replace_input_with(1, editor.op("Add", lowest, editor.constant(1)))
    node.replace_input_with(2, editor.op("Sub", highest, editor.constant(1)))


def _fault(name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, "buckets and capacity", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "the boundary of the largest bucket of the decoder is moved",
        _boundary_moved("decoder"),
        *("t5 cpu fp32", "t5 cpu int8", "t5 cpu int4"),
    ),
    _fault(
        "the boundary of the largest bucket of the encoder is moved",
        _boundary_moved("encoder"),
        *("t5-odd cpu fp32", "t5 cpu int8"),
    ),
    _fault("a distance is in the bucket before its own", _bucket_moved, "t5 neutral fp16"),
    _fault("the two largest buckets are swapped", _largest_swapped, "t5 cpu fp32", "t5 cpu int4"),
    _fault(
        "before and after are swapped in the encoder",
        _directions_swapped,
        "t5 cpu fp32",
        "t5 cpu int8",
    ),
    _fault("distances are clipped one earlier", _clipped_one_earlier, "t5 cpu fp32"),
    _fault(
        "the last position is read as the one before",
        change_positions("decoder", _last_is_the_one_before),
        *("bart cpu fp32", "whisper cpu fp32", "g2p-en cpu fp32"),
        *("gpt2 cpu int8", "g2p-en cpu int4"),
    ),
    _fault(
        "positions are clamped at the last but two",
        change_positions("decoder", _before_the_end),
        *("gpt2 cpu fp32", "bible-en-es cpu fp32", "bart cpu int8"),
    ),
    _fault(
        "the last position of the source is read as the one before",
        change_positions("encoder", _last_is_the_one_before),
        *("bert-embedding cpu fp32", "bart cpu fp32", "g2p-en cpu int8"),
    ),
    _fault(
        "a source at full length loses its last token",
        _last_of_source_lost,
        *("bart cpu fp32", "bert-classifier cpu fp32", "g2p-en cpu int8"),
    ),
)
"""Faults of relative buckets, and of sources and targets at full length."""
