"""Faults of weights that are not quantized: single ones, biases, tables, epsilons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..editing import EditedBundle
from .fault import BundleFault

Inject = Callable[[EditedBundle], None]
Change = Callable[[NDArray[Any]], NDArray[Any]]


def change_weight(graph: str, name: str, change: Change) -> Inject:
    """Change the initializers whose names contain a part, in the graph."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph(graph)
        names = [n for n in editor.initializers if name in n]
        assert names, f"no initializer has {name} in its name"
        for found in names:
            before = editor.weight(found)
            editor.set_weight(found, change(before.copy()))

    return inject


def _scaled(factor: float) -> Change:
    return lambda weight: weight * np.asarray(factor, weight.dtype)


def _largest_off(weight: NDArray[Any]) -> NDArray[Any]:
    index = np.unravel_index(np.argmax(np.abs(weight)), weight.shape)
    weight[index] *= np.asarray(1.01, weight.dtype)
    return weight


def _largest_zero(weight: NDArray[Any]) -> NDArray[Any]:
    weight[np.unravel_index(np.argmax(np.abs(weight)), weight.shape)] = 0
    return weight


def _zero(weight: NDArray[Any]) -> NDArray[Any]:
    return np.zeros_like(weight)


def _one_zero(weight: NDArray[Any]) -> NDArray[Any]:
    weight[np.argmax(np.abs(weight))] = 0
    return weight


def swap_rows(one: int, other: int) -> Change:
    """Two rows of a table change places."""

    def change(weight: NDArray[Any]) -> NDArray[Any]:
        weight[[one, other]] = weight[[other, one]]
        return weight

    return change


def _transposed(weight: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(weight.T)


def _heads_swapped(head_size: int) -> Change:
    """The columns of the first two heads change places."""

    def change(weight: NDArray[Any]) -> NDArray[Any]:
        first, second = slice(0, head_size), slice(head_size, 2 * head_size)
        weight[..., first], weight[..., second] = (
            weight[..., second].copy(),
            weight[..., first].copy(),
        )
        return weight

    return change


def _query_and_key_swapped(weight: NDArray[Any]) -> NDArray[Any]:
    """In a packed projection, queries and keys change places."""
    query, key, value = np.split(weight, 3, axis=-1)
    return np.concatenate([key, query, value], axis=-1)


def _last_third_zero(weight: NDArray[Any]) -> NDArray[Any]:
    """The biases of values are left out of a packed projection."""
    weight[2 * len(weight) // 3 :] = 0
    return weight


def _one_row_late(weight: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([weight[:1], weight[:-1]])


def _in_bfloat16(weight: NDArray[Any]) -> NDArray[Any]:
    return weight.astype(ml_dtypes.bfloat16).astype(weight.dtype)


def _reversed_kernel(weight: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(weight[..., ::-1])


def _epsilon(graph: str, value: float, which: int | None = None) -> Inject:
    """The epsilon of one norm, or of all."""

    def inject(edited: EditedBundle) -> None:
        kinds = ("InstanceNormalization", "LayerNormalization", "RMSNormalization")
        nodes = edited.graph(graph).of_type(*kinds)
        for node in nodes if which is None else [nodes[which]]:
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", value)

    return inject


def _other_output_table(one: int, other: int) -> Inject:
    """The output projection has a table of its own, in which two rows are swapped."""

    def inject(edited: EditedBundle) -> None:
        editor = edited.graph("decoder")
        node = editor.of_type("FusedMatMul")[-1]
        table = node.inputs[1]
        assert table is not None and table.name is not None
        changed = swap_rows(one, other)(editor.weight(table.name))
        node.replace_input_with(1, editor.constant(changed, changed.dtype))

    return inject


def _fault(name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, "weights and epsilons", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "a matrix of the decoder is 1 % too large",
        change_weight("decoder", "layers.1.feed_forward.outer.weight", _scaled(1.01)),
        "bart cpu fp32",
        "whisper cpu fp32",
        "g2p-en neutral fp16",
    ),
    _fault(
        "a matrix of the encoder is 1 % too large",
        change_weight("encoder", "layers.0.self_attention.value.weight", _scaled(1.01)),
        "bert-embedding cpu fp32",
        "t5 cpu fp32",
    ),
    _fault(
        "one weight is 1 % off",
        change_weight("decoder", "layers.0.feed_forward.inner.weight", _largest_off),
        "bart cpu fp32",
        "g2p-en cpu fp32",
        "t5 neutral fp16",
    ),
    _fault(
        "one weight is zero",
        change_weight("decoder", "layers.1.self_attention.output.weight", _largest_zero),
        "gpt2 cpu fp32",
        "bible-en-es cpu fp32",
    ),
    _fault(
        "a bias of the decoder is zero",
        change_weight("decoder", "layers.0.feed_forward.outer.bias", _zero),
        "gpt2 cpu fp32",
        "whisper cpu int8",
        "gpt2 cpu int8",
        "gpt2 cpu int4",
        "g2p-en cpu int4",
    ),
    _fault(
        "a bias of the encoder is zero",
        change_weight("encoder", "layers.1.self_attention.output.bias", _zero),
        "bert-classifier neutral fp16",
        "g2p-en cpu int8",
    ),
    _fault(
        "one component of a bias is zero",
        change_weight("decoder", "layers.1.feed_forward.inner.bias", _one_zero),
        "bart neutral fp32",
        "g2p-en cpu fp32",
    ),
    _fault(
        "the bias of the logits is zero",
        change_weight("decoder", "output.bias", _zero),
        "bart cpu fp32",
        "bart cpu int4",
    ),
    _fault(
        "the biases of keys are swapped with those of another layer's",
        lambda edited: _swap(
            edited,
            "encoder",
            "encoder.layers.0.self_attention.value.bias",
            "encoder.layers.1.self_attention.value.bias",
        ),
        "whisper cpu fp32",
        "bert-embedding cpu int8",
    ),
    _fault(
        "two embeddings of source tokens are swapped",
        change_weight("encoder", "encoder.embedding.tokens.weight", swap_rows(9, 10)),
        "bert-classifier cpu fp32",
        "g2p-en cpu fp32",
        "t5-odd cpu fp32",
    ),
    _fault(
        "two embeddings of rare source tokens are swapped",
        change_weight("encoder", "encoder.embedding.tokens.weight", swap_rows(5800, 5900)),
        "bible-en-es cpu fp32",
    ),
    _fault(
        "two embeddings of target tokens are swapped",
        change_weight("decoder", "decoder.embedding.tokens.weight", swap_rows(100, 201)),
        "gpt2 neutral fp16",
        "gpt2 cpu fp32",
    ),
    _fault(
        "the output table has two rows swapped",
        _other_output_table(20, 21),
        "bart cpu fp32",
        "g2p-en cpu fp32",
    ),
    _fault(
        "the epsilons of the decoder are 1e-3",
        _epsilon("decoder", 1e-3),
        "bart cpu fp32",
        "gpt2 neutral fp16",
        "t5 cpu fp32",
    ),
    _fault(
        "one epsilon of the encoder is 1e-3",
        _epsilon("encoder", 1e-3, 2),
        "bert-embedding cpu fp32",
        "t5-odd cpu fp32",
        "g2p-en cpu fp32",
    ),
    _fault(
        "the epsilons of the encoder are 1e-5",
        _epsilon("encoder", 1e-5),
        "bert-classifier cpu fp32",
    ),
    _fault(
        "the last epsilon is 0.1", _epsilon("decoder", 0.1, -1), "g2p-en cpu int8", "gpt2 cpu int4"
    ),
    _fault(
        "a square matrix is transposed",
        change_weight("decoder", "layers.0.cross_attention.output.weight", _transposed),
        "bart neutral fp32",
        "t5 neutral fp16",
    ),
    _fault(
        "two heads of a projection are swapped",
        change_weight("encoder", "layers.1.self_attention.value.weight", _heads_swapped(8)),
        "t5 cpu fp32",
        "bert-classifier cpu fp32",
    ),
    _fault(
        "queries and keys are swapped in a packed projection",
        change_weight(
            "decoder", "decoder.layers.1.self_attention.value.weight.packed", _query_and_key_swapped
        ),
        "gpt2 cpu fp32",
        "whisper cpu fp32",
    ),
    _fault(
        "the biases of values are left out of a packed projection",
        change_weight(
            "decoder", "decoder.layers.0.self_attention.value.weight.packed_bias", _last_third_zero
        ),
        "bart cpu fp32",
        "gpt2 cpu int4",
        "bart cpu int8",
    ),
    _fault(
        "the positions of the decoder are one row late",
        change_weight("decoder", "positions.table", _one_row_late),
        "whisper cpu fp32",
        "gpt2 cpu int8",
        "g2p-en cpu int4",
    ),
    _fault(
        "weights went through bfloat16",
        change_weight("decoder", "feed_forward.inner.weight", _in_bfloat16),
        "bart cpu fp32",
        "verses-en cpu fp32",
    ),
    _fault(
        "a convolution's kernel is reversed",
        change_weight("encoder", "second_convolution.weight", _reversed_kernel),
        "whisper cpu fp32",
        "whisper cpu int8",
    ),
    _fault(
        "a bias of the head is zero",
        change_weight("encoder", "head.dense.linear.bias", _zero),
        "bert-classifier cpu fp32",
        "bert-classifier neutral fp16",
    ),
    _fault(
        "the biases of two labels are swapped",
        change_weight("encoder", "head.output.bias", swap_rows(0, 2)),
        "bert-classifier cpu fp32",
    ),
    _fault(
        "biases of distances are 1 % too large",
        change_weight("decoder", "embedding", _scaled(1.01)),
        "t5 cpu int8",
        "t5 cpu int4",
    ),
)
"""Faults of weights, biases, tables and epsilons."""


def _swap(edited: EditedBundle, graph: str, one: str, other: str) -> None:
    editor = edited.graph(graph)
    first, second = editor.weight(one), editor.weight(other)
    editor.set_weight(one, second)
    editor.set_weight(other, first)
