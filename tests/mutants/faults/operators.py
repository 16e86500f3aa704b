"""Faults of masks and operators: what an exporter or a fusion writes wrongly into a graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..editing import EditedBundle, GraphEditor
from .fault import BundleFault

Inject = Callable[[EditedBundle], None]


def everywhere_true(editor: GraphEditor) -> None:
    """Let a graph see padding as if it were tokens."""
    editor.replace(editor.value("source_mask"), lambda mask: editor.op("Equal", mask, mask))


def _mask_ignored(graph: str) -> Inject:
    return lambda edited: everywhere_true(edited.graph(graph))


def _last_token_masked(edited: EditedBundle) -> None:
    """The last token of a source that is followed by padding counts as padding."""
    for editor in edited.editors.values():
        mask = editor.value("source_mask")

        def shifted(mask: ir.Value, editor: GraphEditor = editor) -> ir.Value:
            length = editor.op("Squeeze", editor.op("Shape", mask, start=1, end=2))
            zero, one = editor.constant(0), editor.constant(1)
            indices = editor.op("Range", zero, length, one)
            last = editor.op("Sub", length, one)
            following = editor.op("Clip", editor.op("Add", indices, one), zero, last)
            first = editor.op("Equal", indices, zero)  # or a source of one token had none
            return editor.where_mask(first, mask, editor.op("Gather", mask, following, axis=1))

        editor.replace(mask, shifted)


def _attention_scaled(graph: str, factor: float) -> Inject:
    def inject(edited: EditedBundle) -> None:
        default = 1 / math.sqrt(edited.manifest.model.head_size)
        kinds = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
        node = edited.graph(graph).of_type(*kinds)[-1]
        given = node.attributes.get("scale")
        scale = (default if given is None else given.as_float()) * factor
        node.attributes["scale"] = ir.AttrFloat32("scale", scale)

    return inject


def _other_gelu(edited: EditedBundle) -> None:
    """The exact GELU becomes the one with tanh, and the other way round."""
    for editor in edited.editors.values():
        for node in editor.of_type("BiasGelu", "FastGelu"):
            tanh = "none" if node.op_type == "FastGelu" else "tanh"
            product, bias = node.inputs
            editor.replace(
                node.outputs[0],
                lambda _, e=editor, p=product, b=bias, t=tanh: e.op(  # type: ignore[misc]
                    "Gelu", e.op("Add", p, b), approximate=t
                ),
            )
        for node in editor.of_type("Gelu"):
            if node.outputs[0].name and not node.outputs[0].name.startswith("fault"):
                given = node.attributes.get("approximate")
                exact = given is None or given.as_string() == "none"
                other = "tanh" if exact else "none"
                node.attributes["approximate"] = ir.AttrString("approximate", other)


def _relu_is_gelu(edited: EditedBundle) -> None:
    for editor in edited.editors.values():
        for node in editor.of_type("Relu"):
            read = node.inputs[0]
            editor.replace(node.outputs[0], lambda _, e=editor, r=read: e.op("Gelu", r))  # type: ignore[misc]


def _gain_forgotten(graph: str, name: str) -> Inject:
    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        editor.set_weight(name, np.ones_like(editor.weight(name)))

    return inject


def _gains_swapped(graph: str, one: str, other: str) -> Inject:
    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        first, second = editor.weight(one), editor.weight(other)
        editor.set_weight(one, second)
        editor.set_weight(other, first)

    return inject


def _end_token(change: float) -> Inject:
    """The logit of the end token is off."""

    def inject(edited: EditedBundle) -> None:
        editor, model = edited.graph("decoder"), edited.manifest.model
        column = np.zeros(model.target_vocab_size)
        column[model.end_token_id] = change
        logits = editor.value("logits")
        assert logits.dtype is not None
        row = editor.constant(column, logits.dtype.numpy())
        editor.replace(logits, lambda value: editor.op("Add", value, row))

    return inject


def _weak_mask(edited: EditedBundle) -> None:
    """Padding is attended to a little: its scores are 5 lower, not infinitely."""
    for node in edited.graph("decoder").of_type("MultiHeadAttention"):
        node.attributes["mask_filter_value"] = ir.AttrFloat32("mask_filter_value", -5.0)


def _residual_left_out(edited: EditedBundle) -> None:
    """The last sum of a layer's input and its feed-forward is its feed-forward alone."""
    editor = edited.graph("encoder" if "encoder" in edited.manifest.graphs else "decoder")
    sums = [
        node
        for node in editor.of_type("Add")
        if all(i is not None and i.name not in editor.initializers for i in node.inputs)
        and (node.outputs[0].name or "").startswith("add")
    ]
    added = sums[-1].inputs[1]
    assert added is not None
    editor.replace(sums[-1].outputs[0], lambda _: editor.op("Mul", added, editor.constant(1.0)))


def _nan_at_padding(edited: EditedBundle) -> None:
    """Values of cross-attention are NaN at padding, where attention weighs them with zero."""
    editor = edited.graph("encoder")
    value = editor.value("cross_value_1")
    mask = editor.op("Unsqueeze", editor.value("source_mask"), editor.constant([1, 3]))
    editor.replace(
        value, lambda v: editor.op("Where", mask, v, editor.constant(np.nan, np.float32))
    )


def _next_is_seen(edited: EditedBundle) -> None:
    """Each token of a pass attends to the one after it."""
    editor = edited.graph("decoder")
    node = editor.of_type("LessOrEqual")[0]
    position = node.inputs[1]
    assert position is not None
    node.replace_input_with(1, editor.op("Add", position, editor.constant(1)))


def _mean_of_all(edited: EditedBundle) -> None:
    """The mean of a text's tokens is that of its padding, too."""
    editor = edited.graph("encoder")
    cast = editor.of_type("Cast")[-1]
    mask = cast.inputs[0]
    assert mask is not None
    cast.replace_input_with(0, editor.op("Equal", mask, mask))


def _not_normalized(edited: EditedBundle) -> None:
    """The vector of a text has the length that it happens to have."""
    editor = edited.graph("encoder")
    mean = editor.of_type("Div")[-1].inputs[0]
    assert mean is not None
    editor.replace(
        editor.value("embedding"), lambda _: editor.op("Mul", mean, editor.constant(1.0))
    )


def _nothing_suppressed(edited: EditedBundle) -> None:
    """The graph's own choice includes the tokens that are never chosen."""
    editor = edited.graph("decoder")
    editor.set_weight("choose.suppression", np.zeros_like(editor.weight("choose.suppression")))


def _fault(name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, "masks and operators", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "cross-attention sees padding",
        _mask_ignored("decoder"),
        *("bart cpu fp32", "g2p-en cpu int8", "t5 cpu int4"),
    ),
    _fault(
        "the encoder sees padding",
        _mask_ignored("encoder"),
        *("bert-embedding cpu fp32", "t5 neutral fp16", "bart cpu int8"),
    ),
    _fault(
        "the last token before padding is masked",
        _last_token_masked,
        *("bart cpu fp32", "g2p-en cpu int4"),
    ),
    _fault(
        "attention is 5 % too sharp in one layer of the decoder",
        _attention_scaled("decoder", 1.05),
        *("bart cpu fp32", "t5 neutral fp16", "g2p-en cpu int8"),
    ),
    _fault(
        "attention is not scaled in one layer of the encoder",
        _attention_scaled("encoder", math.sqrt(8)),
        *("bert-classifier cpu fp32", "bart cpu int8"),
    ),
    _fault(
        "the other GELU",
        _other_gelu,
        *("bart cpu fp32", "gpt2 cpu fp32", "whisper cpu fp32", "bert-classifier neutral fp16"),
        *("gpt2 cpu int8",),
    ),
    _fault("GELU in place of ReLU", _relu_is_gelu, "t5 cpu fp32", "t5 cpu int8"),
    _fault(
        "the gain of the last norm is forgotten",
        _gain_forgotten("decoder", "decoder.norm.gain"),
        *("t5 cpu fp32", "gpt2 cpu int8", "g2p-en cpu int4"),
    ),
    _fault(
        "the gains of two norms are swapped",
        _gains_swapped(
            "encoder",
            "encoder.layers.0.feed_forward_residual.norm.gain",
            "encoder.layers.1.feed_forward_residual.norm.gain",
        ),
        *("bert-embedding cpu int8", "bert-embedding openvino int8", "bart neutral fp32"),
    ),
    _fault(
        "the end token is never chosen", _end_token(-1e4), "g2p-en cpu fp32", "verses-en cpu int4"
    ),
    _fault(
        "the end token's logit is 1 too low",
        _end_token(-1.0),
        "bible-en-es cpu fp32",
        "g2p-en cpu int8",
    ),
    _fault("padding is attended to a little", _weak_mask, "bart cpu fp32", "g2p-en cpu int4"),
    _fault(
        "a residual connection is left out",
        _residual_left_out,
        "bert-classifier cpu fp32",
        "bart cpu int4",
    ),
    _fault("values at padding are NaN", _nan_at_padding, "bart cpu fp32", "t5 cpu int8"),
    _fault(
        "a token of a pass attends to the next one",
        _next_is_seen,
        *("bart neutral fp32", "gpt2 neutral fp16"),
    ),
    _fault(
        "the mean counts padding",
        _mean_of_all,
        *("bert-embedding cpu fp32", "bert-embedding openvino fp32"),
    ),
    _fault(
        "embeddings are not normalized",
        _not_normalized,
        "bert-embedding cpu fp32",
        "bert-embedding cpu int8",
        "bert-embedding openvino int8",
    ),
    _fault(
        "tokens are not suppressed", _nothing_suppressed, "whisper cpu fp32", "whisper cpu int8"
    ),
)
"""Faults of masks, attention, activations, norms and the end token."""
