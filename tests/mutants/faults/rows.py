"""Faults of single rows, log-probabilities and token ids: wrong for some requests only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..editing import EditedBundle, GraphEditor, Make
from .fault import BundleFault, Kind
from .positions import change_positions

Inject = Callable[[EditedBundle], None]


def _rows(editor: GraphEditor, of: str) -> ir.Value:
    """The number of rows of an input: int64 scalar."""
    return editor.op("Squeeze", editor.op("Shape", editor.value(of), start=0, end=1))


def _first_input(editor: GraphEditor) -> str:
    return "token" if editor.has("token") else "source"


def _later_in_batches_of(count: int, graph: str) -> Inject:
    """Positions are one later if the batch has exactly so many rows."""

    def later(editor: GraphEditor, indices: ir.Value) -> ir.Value:
        rows = _rows(editor, _first_input(editor))
        is_so = editor.op("Equal", rows, editor.constant(count))
        one = editor.op("Cast", is_so, to=ir.DataType.INT64)
        moved = editor.op("Add", indices, one)
        return editor.op("Clip", moved, editor.constant(0), editor.constant(36))

    return change_positions(graph, later)


def _padding_seen_in_batches_of(count: int) -> Inject:
    """Padding counts as tokens if the batch has exactly so many sources."""

    def inject(edited: EditedBundle) -> None:
        for editor in edited.editors.values():

            def seen(mask: ir.Value, editor: GraphEditor = editor) -> ir.Value:
                rows = _rows(editor, "source_mask")
                is_so = editor.op("Equal", rows, editor.constant(count))
                return editor.where_mask(is_so, editor.op("Equal", mask, mask), mask)

            editor.replace(editor.value("source_mask"), seen)

    return inject


def _rows_from(start: int, source: int) -> Callable[[GraphEditor, ir.Value], ir.Value]:
    """Rows from one on are another row's."""

    def change(editor: GraphEditor, value: ir.Value) -> ir.Value:
        rows = editor.op("Squeeze", editor.op("Shape", value, start=0, end=1))
        indices = editor.op("Range", editor.constant(0), rows, editor.constant(1))
        within = editor.op("LessOrEqual", indices, editor.constant(start - 1))
        chosen = editor.op("Where", within, indices, editor.constant(source))
        return editor.op("Gather", value, chosen, axis=0)

    return change


def _row_is(row: int, source: int) -> Callable[[GraphEditor, ir.Value], ir.Value]:
    """One row, if there is one, is another row's."""

    def change(editor: GraphEditor, value: ir.Value) -> ir.Value:
        rows = editor.op("Squeeze", editor.op("Shape", value, start=0, end=1))
        indices = editor.op("Range", editor.constant(0), rows, editor.constant(1))
        is_row = editor.op("Equal", indices, editor.constant(row))
        chosen = editor.op("Where", is_row, editor.constant(source), indices)
        return editor.op("Gather", value, chosen, axis=0)

    return change


def _changed(graph: str, name: str, change: Callable[[GraphEditor, ir.Value], ir.Value]) -> Inject:
    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        editor.replace(editor.value(name), lambda value: change(editor, value))

    return inject


def _one_scale_for_all(edited: EditedBundle) -> None:
    """The activations of all rows share a scale, which the largest row decides."""
    for editor in edited.editors.values():
        for node in editor.of_type("ReduceMax"):
            read = node.inputs[0]
            assert read is not None
            producer = read.producer()
            if producer is not None and producer.op_type == "Abs":
                node.replace_input_with(1, None)  # over all axes, not only the last


def _log_probability(make: Callable[[GraphEditor, ir.Value], ir.Value]) -> Inject:
    """Another log-probability of the next token."""
    return _changed("decoder", "next_log_probability", make)


def _chosen_from(editor: GraphEditor) -> ir.Value:
    """The last step's logits [B, V] that the next token is chosen from."""
    softmax = editor.of_type("LogSoftmax")[-1].inputs[0]
    assert softmax is not None
    return softmax


def _doubled(editor: GraphEditor, value: ir.Value) -> ir.Value:
    return editor.op("Mul", value, editor.constant(2.0))


def _slightly_off(editor: GraphEditor, value: ir.Value) -> ir.Value:
    return editor.op("Sub", value, editor.constant(0.01))


def _unnormalized(editor: GraphEditor, value: ir.Value) -> ir.Value:
    largest = editor.op("ReduceMax", _chosen_from(editor), editor.constant([-1]), keepdims=0)
    return editor.op("Cast", largest, to=ir.DataType.FLOAT)


def _second_best(editor: GraphEditor, value: ir.Value) -> ir.Value:
    softmax = editor.of_type("LogSoftmax")[-1].outputs[0]
    best = editor.op("TopK", softmax, editor.constant([2]), axis=-1, outputs=2)
    last = editor.op("Gather", best, editor.constant(1), axis=1)
    return editor.op("Cast", last, to=ir.DataType.FLOAT)


def _of_all_tokens(edited: EditedBundle) -> None:
    """The log-probability counts the tokens that are suppressed."""
    editor = edited.graph("decoder")
    node = editor.of_type("LogSoftmax")[-1]
    last = editor.op("Gather", editor.value("logits"), editor.constant(-1), axis=1)
    node.replace_input_with(0, last)


def _candidates_unnormalized(edited: EditedBundle) -> None:
    editor = edited.graph("candidates")
    node = editor.of_type("LogSoftmax")[-1]
    read = node.inputs[0]
    assert read is not None
    editor.replace(node.outputs[0], lambda _: editor.op("Cast", read, to=ir.DataType.FLOAT))


def _token_read_as(low: int, other: int, graph: str, name: str) -> Inject:
    """Token ids from one on are read as another token."""

    def change(editor: GraphEditor, tokens: ir.Value) -> ir.Value:
        known = editor.op("LessOrEqual", tokens, editor.constant(low - 1))
        return editor.op("Where", known, tokens, editor.constant(other))

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        tokens = editor.value(name)
        make: Make = lambda value: change(editor, value)  # noqa: E731
        editor.replace(tokens, make)

    return inject


def _columns_swapped(one: int, other: int) -> Inject:
    """The logits of two tokens are swapped."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("decoder")
        order = np.arange(edited.manifest.model.target_vocab_size)
        order[[one, other]] = order[[other, one]]
        indices = editor.constant(order)
        editor.replace(
            editor.value("logits"), lambda logits: editor.op("Gather", logits, indices, axis=2)
        )

    return inject


def _last_token_unreachable(edited: EditedBundle) -> None:
    """The last token of the vocabulary has no logit of its own: it has that of the one before."""
    editor = edited.graph("decoder")
    order = np.arange(edited.manifest.model.target_vocab_size)
    order[-1] = order[-2]
    indices = editor.constant(order)
    editor.replace(
        editor.value("logits"), lambda logits: editor.op("Gather", logits, indices, axis=2)
    )


def _padding_seen_by_large_batches(edited: EditedBundle) -> None:
    """The encoder ignores the mask if the batch has more than 32 sources."""
    editor = edited.graph("encoder")
    few = editor.op("LessOrEqual", _rows(editor, "source"), editor.constant(32))
    editor.replace(
        editor.value("source_mask"),
        lambda mask: editor.where_mask(few, mask, editor.op("Equal", mask, mask)),
    )


def _fault(kind: Kind, name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, kind, bundles, inject)


ROWS: Kind = "rows of a batch"
LOG: Kind = "log-probabilities"
WORDS: Kind = "vocabulary"

FAULTS: tuple[BundleFault, ...] = (
    _fault(
        ROWS,
        "positions are one later in batches of 1",
        _later_in_batches_of(1, "decoder"),
        "bart cpu fp32",
        "gpt2 cpu int8",
    ),
    _fault(
        ROWS,
        "positions are one later in batches of 3",
        _later_in_batches_of(3, "decoder"),
        "gpt2 cpu fp32",
        "g2p-en cpu int4",
    ),
    _fault(
        ROWS,
        "positions of the source are one later in batches of 5",
        _later_in_batches_of(5, "encoder"),
        "bert-classifier cpu fp32",
    ),
    _fault(
        ROWS,
        "padding is seen in batches of 3",
        _padding_seen_in_batches_of(3),
        "t5 cpu fp32",
        "g2p-en neutral fp16",
        "bart cpu int8",
    ),
    _fault(
        ROWS,
        "padding is seen in batches of 65",
        _padding_seen_in_batches_of(65),
        "bart cpu fp32",
        "bert-embedding cpu fp32",
    ),
    _fault(
        ROWS,
        "padding is seen in batches over 32",
        _padding_seen_by_large_batches,
        "t5 neutral fp32",
        "g2p-en cpu int8",
    ),
    _fault(
        ROWS,
        "the third row has the second one's logits",
        _changed("decoder", "logits", _row_is(2, 1)),
        "t5-odd cpu fp32",
        "whisper cpu fp32",
        "gpt2 cpu int4",
    ),
    _fault(
        ROWS,
        "rows from the 33rd on have the first one's mask",
        _changed("encoder", "source_mask", _rows_from(32, 0)),
        "bart cpu fp32",
        "bert-embedding cpu int8",
        "bert-embedding openvino fp32",
    ),
    _fault(
        ROWS,
        "rows from the 65th on have the first one's logits",
        _changed("decoder", "logits", _rows_from(64, 0)),
        "gpt2 cpu fp32",
        "t5 cpu int8",
    ),
    _fault(
        ROWS,
        "all rows share the scale of their activations",
        _one_scale_for_all,
        "bart cpu int8",
        "bert-embedding cpu int8",
    ),
    _fault(
        LOG,
        "the log-probability is doubled",
        _log_probability(_doubled),
        "t5 cpu fp32",
        "gpt2 neutral fp16",
        "g2p-en cpu int8",
        "gpt2 cpu int4",
    ),
    _fault(
        LOG,
        "the log-probability is not normalized",
        _log_probability(_unnormalized),
        "gpt2 cpu fp32",
        "bart cpu int8",
        "t5 cpu int4",
    ),
    _fault(
        LOG,
        "the log-probability is the second token's",
        _log_probability(_second_best),
        "g2p-en cpu fp32",
        "t5 neutral fp16",
        "gpt2 cpu int8",
    ),
    _fault(
        LOG,
        "the log-probability is 0.01 too low",
        _log_probability(_slightly_off),
        "bart cpu fp32",
        "whisper cpu fp32",
        "g2p-en cpu int4",
    ),
    _fault(
        LOG,
        "the log-probability counts suppressed tokens",
        _of_all_tokens,
        "whisper cpu fp32",
        "whisper cpu int8",
    ),
    _fault(
        LOG,
        "log-probabilities of candidates are not normalized",
        _candidates_unnormalized,
        "bart neutral fp32",
        "gpt2 neutral fp16",
    ),
    _fault(
        WORDS,
        "source tokens from 280 on are read as token 3",
        _token_read_as(280, 3, "encoder", "source"),
        "bart cpu fp32",
        "bart cpu int8",
    ),
    _fault(
        WORDS,
        "source tokens from 5990 on are read as token 3",
        _token_read_as(5990, 3, "encoder", "source"),
        "bible-en-es cpu fp32",
    ),
    _fault(
        WORDS,
        "target tokens from 284 on are read as token 3",
        _token_read_as(284, 3, "decoder", "token"),
        "gpt2 cpu fp32",
        "gpt2 cpu int4",
    ),
    _fault(
        WORDS,
        "two tokens have each other's logits",
        _columns_swapped(30, 38),
        "t5 cpu fp32",
        "whisper cpu fp32",
        "gpt2 cpu int8",
        "g2p-en cpu int4",
    ),
    _fault(
        WORDS,
        "the last token has the logit of the one before",
        _last_token_unreachable,
        "bible-en-es cpu fp32",
        "bart neutral fp32",
        "t5 cpu int8",
    ),
)
"""Faults of batches of some sizes, of log-probabilities, of single tokens."""
