"""Faults of shortlists: gathered weights, allowed tokens, and the rows that they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from dragoman.runtime.backends.rows import ALLOWED_COLUMN, ALLOWED_TOKEN, BatchShortlist
from dragoman.runtime.texts.shortlist import Shortlist, read_shortlist

from ...verification.damage import packed, unpacked
from ..editing import EditedBundle, GraphEditor
from .fault import BundleFault, Fault, Kind, RuntimeFault

KIND: Kind = "shortlists"
Change = Callable[[NDArray[Any]], NDArray[Any]]
Indices = Callable[[GraphEditor, ir.Value], ir.Value]
Inject = Callable[[EditedBundle], None]


def _reads(editor: GraphEditor, part: str) -> list[tuple[ir.Node, int]]:
    """The nodes that read an initializer with such a name, and the number of the input."""
    return [
        (node, index)
        for node in editor.nodes
        for index, value in enumerate(node.inputs)
        if value is not None and value.name in editor.initializers and part in (value.name or "")
    ]


def _ids(change: Indices, part: str = "") -> Inject:
    """What is gathered of weights with such names is that of other tokens."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("shortlist_weights")
        ids = editor.value("shortlist")
        nodes = {node for node, _ in _reads(editor, part) if ids in node.inputs}
        assert nodes
        other = change(editor, ids)
        for node in nodes:
            node.replace_input_with(list(node.inputs).index(ids), other)

    return inject


def _one_later(editor: GraphEditor, ids: ir.Value) -> ir.Value:
    return editor.op("Max", editor.op("Sub", ids, editor.constant(1)), editor.constant(0))


def _not_gathered(editor: GraphEditor, ids: ir.Value) -> ir.Value:
    """The first numbers, as many as there are tokens."""
    size = editor.op("Squeeze", editor.op("Shape", ids))
    first = editor.op("Range", editor.constant(0), size, editor.constant(1))
    return editor.op("Clip", first, editor.constant(0), editor.constant(200))


def _at_most(token: int) -> Indices:
    return lambda editor, ids: editor.op("Clip", ids, editor.constant(0), editor.constant(token))


def _own_copy(part: str, change: Change) -> Inject:
    """The shortlist has a copy of a weight, which is another."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("shortlist_weights")
        found = _reads(editor, part)
        assert found
        for node, index in found:
            value = node.inputs[index]
            assert value is not None and value.name is not None
            changed = change(editor.weight(value.name))
            node.replace_input_with(index, editor.constant(changed, changed.dtype))

    return inject


def _row_scaled(factor: float) -> Change:
    def change(weight: NDArray[Any]) -> NDArray[Any]:
        weight[77] *= np.asarray(factor, weight.dtype)
        return weight

    return change


def _zero(weight: NDArray[Any]) -> NDArray[Any]:
    return np.zeros_like(weight)


def _one_row_late(weight: NDArray[Any]) -> NDArray[Any]:
    return np.roll(weight, 1, axis=0)


def _in_half(weight: NDArray[Any]) -> NDArray[Any]:
    return weight.astype(np.float16).astype(weight.dtype)


def _nibbles_off(weight: NDArray[Any]) -> NDArray[Any]:
    """All integers of a token are one too large."""
    values = unpacked(weight)
    values[77] = np.minimum(values[77] + 1, 7)
    return packed(values, weight.shape)


def _decoder(change: Callable[[GraphEditor], None]) -> Inject:
    return lambda edited: change(edited.graph("shortlist_decoder"))


def _producer(editor: GraphEditor, output: str) -> ir.Node:
    node = editor.value(output).producer()
    assert node is not None
    return node


def _before(editor: GraphEditor, value: ir.Value | None, kind: str) -> ir.Node:
    """The last node of a kind on the way to a value."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type != kind:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    assert node is not None
    return node


def _of_choice(editor: GraphEditor, kind: str) -> ir.Node:
    (node,) = [n for n in editor.of_type(kind) if (n.outputs[0].name or "").startswith("shortlist")]
    return node


def _padding(value: float | None) -> Callable[[GraphEditor], None]:
    """The logits of padding; None: those of the first column."""

    def change(editor: GraphEditor) -> None:
        node = _of_choice(editor, "Where")
        never, own = node.inputs[1:]
        assert never is not None and own is not None
        node.replace_input_with(
            1, own if value is None else editor.like(editor.value("logits"), value)
        )

    return change


def _not_mapped(editor: GraphEditor) -> None:
    """The next token is its place among those of its row."""
    place = _of_choice(editor, "ArgMax").outputs[0]
    _producer(editor, "next_token").replace_input_with(0, place)


def _column_chosen(editor: GraphEditor) -> None:
    """The next token is its place among those of the batch."""
    node = _before(editor, _producer(editor, "next_token").inputs[0], "GatherElements")
    node.replace_input_with(0, editor.value("allowed_column"))


def _first_chosen(editor: GraphEditor) -> None:
    """The next token is the first that a row allows."""
    node = _of_choice(editor, "ArgMax")
    editor.replace(
        node.outputs[0], lambda place: editor.op("Mul", place, editor.constant(0)), uses=True
    )


def _not_normalized(editor: GraphEditor) -> None:
    node = _of_choice(editor, "LogSoftmax")
    wide = node.inputs[0]
    assert wide is not None
    editor.replace(node.outputs[0], lambda _: editor.op("Mul", wide, editor.constant(1.0)))


def _normalized_over_batch(editor: GraphEditor) -> None:
    """Log-probabilities count the tokens of all sources of the batch."""
    softmax, own = _of_choice(editor, "LogSoftmax"), _of_choice(editor, "Where").inputs[2]
    assert own is not None
    gather = own.producer()
    assert gather is not None and gather.inputs[0] is not None
    floats = editor.op("Cast", gather.inputs[0], to=ir.DataType.FLOAT)
    each = editor.op("LogSoftmax", floats, axis=-1)
    editor.replace(
        softmax.outputs[0],
        lambda _: editor.op("GatherElements", each, editor.value("allowed_column"), axis=1),
    )


def _of_next_row(name: str) -> Callable[[GraphEditor], None]:
    """Each row takes an input of the row after it."""

    def change(editor: GraphEditor) -> None:
        def moved(value: ir.Value) -> ir.Value:
            count = editor.op("Squeeze", editor.op("Shape", value, start=0, end=1))
            numbers = editor.op("Range", editor.constant(1), count, editor.constant(1))
            order = editor.op("Concat", numbers, editor.constant([0]), axis=0)
            return editor.op("Gather", value, order, axis=0)

        editor.replace(editor.value(name), moved)

    return change


def _bias_left_out(editor: GraphEditor) -> None:
    node = _before(editor, _of_choice(editor, "Where").inputs[2], "Add")
    product = node.inputs[0]
    assert product is not None
    one = editor.like(editor.value("logits"), 1.0)
    editor.replace(node.outputs[0], lambda _: editor.op("Mul", product, one))


def _lists(change: Callable[[Shortlist], Shortlist]) -> Inject:
    """The file of the shortlist, and what the manifest says of it."""

    def inject(edited: EditedBundle) -> None:
        record = edited.manifest.shortlist
        assert record is not None
        model = edited.manifest.model
        found = change(read_shortlist(edited.bundle.path(record.file), model))
        edited.files[record.file] = found.to_bytes()
        edited.manifest = dataclasses.replace(edited.manifest, shortlist=found.record)

    return inject


def _without_end(shortlist: Shortlist) -> Shortlist:
    return shortlist.with_always([], never=[2])


def _in_rows(
    change: Callable[[BatchShortlist, int, Any], Any],
) -> Callable[[pytest.MonkeyPatch], None]:
    """The tokens and columns of rows are changed."""
    right = BatchShortlist.rows

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            BatchShortlist, "rows", lambda self, width: change(self, width, right(self, width))
        )

    return patch


def _tiled(shortlist: BatchShortlist, width: int, found: Any) -> Any:
    """The rows of a source lie apart, as if a batch were repeated as a whole."""
    return {slot: np.tile(values[::width], (width, 1)) for slot, values in found.items()}


def _other_columns(shortlist: BatchShortlist, width: int, found: Any) -> Any:
    """The columns are those of each source alone, not of the batch."""
    columns = np.broadcast_to(np.arange(found[ALLOWED_TOKEN].shape[1]), found[ALLOWED_TOKEN].shape)
    return found | {ALLOWED_COLUMN: np.where(found[ALLOWED_TOKEN] < 0, 0, columns)}


def _padded_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding is token 0."""
    _in_rows(
        lambda shortlist, width, found: found | {ALLOWED_TOKEN: np.maximum(found[ALLOWED_TOKEN], 0)}
    )(monkeypatch)


def _joined_as_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sources that join a batch allow what the first of them allows."""
    right = BatchShortlist.joined

    def joined(self: BatchShortlist, other: Any, *given: Any) -> BatchShortlist:
        first = other._of([other._allowed[0]] * len(other._allowed))
        return right(self, first, *given)

    monkeypatch.setattr(BatchShortlist, "joined", joined)


def _kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources that stay are taken for the first ones."""
    right = BatchShortlist.kept
    monkeypatch.setattr(
        BatchShortlist, "kept", lambda self, sources: right(self, range(len(sources)))
    )


def _former_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that others join keeps its weights."""
    right = BatchShortlist.joined

    def joined(self: BatchShortlist, *given: Any) -> BatchShortlist:
        found = right(self, *given)
        found.weights, found._columns = self.weights, np.maximum(self._columns, 0)
        return found

    monkeypatch.setattr(BatchShortlist, "joined", joined)


def _fault(name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, KIND, bundles, inject)


def _of_runtime(
    name: str, patch: Callable[[pytest.MonkeyPatch], None], *bundles: str
) -> RuntimeFault:
    return RuntimeFault(name, KIND, bundles, patch)


FP32, FP16, INT8, INT4 = "ssru cpu fp32", "ssru neutral fp16", "ssru cpu int8", "ssru cpu int4"
UNTIED, UNTIED8 = "ssru-untied cpu fp32", "ssru-untied cpu int8"
WEIGHT_ONLY = "ssru neutral int8"
ALL = (FP32, FP16, INT8, INT4)

FAULTS: tuple[Fault, ...] = (
    _fault("gathered weights are those of the token before", _ids(_one_later), *ALL, UNTIED8),
    _fault(
        "the bias of the logits is not gathered", _ids(_not_gathered, "output.bias"), *ALL, UNTIED
    ),
    _fault(
        "scales of gathered rows are not gathered",
        _ids(_not_gathered, ".scale"),
        *(INT8, UNTIED8, WEIGHT_ONLY),
    ),
    _fault("scales of gathered blocks are one row late", _own_copy(".scale", _one_row_late), INT4),
    _fault(
        "the scale of one gathered token is 2 % off",
        _own_copy(".scale", _row_scaled(1.02)),
        INT8,
        INT4,
        WEIGHT_ONLY,
    ),
    _fault(
        "the integers of one gathered token are one off", _own_copy(".int4", _nibbles_off), INT4
    ),
    _fault(
        "the bias of one gathered token is zero", _own_copy("output.bias", _row_scaled(0)), *ALL
    ),
    _fault("the biases of gathered tokens are zero", _own_copy("output.bias", _zero), *ALL),
    _fault("one gathered token is 1 % off", _own_copy("tokens.weight", _row_scaled(1.01)), FP32),
    _fault("gathered weights went through 16 bits", _own_copy("weight", _in_half), FP32, UNTIED),
    _fault("gathered tokens from 209 on are token 208", _ids(_at_most(208)), *ALL, UNTIED),
    _fault("the bias of a shortlist's logits is left out", _decoder(_bias_left_out), *ALL),
    _fault("padding of a row is a candidate", _decoder(_padding(None)), *ALL),
    _fault("padding of a row is masked weakly", _decoder(_padding(-5.0)), FP32, INT8),
    _fault("tokens of a row are not mapped back", _decoder(_not_mapped), *ALL),
    _fault("tokens are columns of the batch", _decoder(_column_chosen), *ALL),
    _fault("the first token of a list is chosen", _decoder(_first_chosen), FP32, INT4),
    _fault("choices of a shortlist are not normalized", _decoder(_not_normalized), *ALL),
    _fault(
        "choices of a shortlist count other rows' tokens", _decoder(_normalized_over_batch), *ALL
    ),
    _fault("a row has the columns of the next", _decoder(_of_next_row("allowed_column")), *ALL),
    _fault("a row has the tokens of the next", _decoder(_of_next_row("allowed_token")), FP32, INT8),
    _fault("the end token is missing in the lists", _lists(_without_end), FP32, INT8),
    _of_runtime("beams have the tokens of another source", _in_rows(_tiled), FP32, INT8),
    _of_runtime("columns are those of a single source", _in_rows(_other_columns), FP32, INT4),
    _of_runtime("padding is token 0", _padded_with_zeros, FP32, INT8),
    _of_runtime("sources that join have the first one's list", _joined_as_first, FP32, INT8),
    _of_runtime("sources that stay have others' lists", _kept_in_order, FP32, INT8),
    _of_runtime("a batch keeps its weights when others join", _former_weights, FP32, INT8),
)
"""Faults of gathered weights, of lists, of choices among them, and of rows."""
