"""Faults of quantized weights: their scales, zero points, blocks and integers.

Weights are `NAME.int8`, int8 [inputs, outputs] (tables [tokens, width]), with `NAME.scale`
[outputs] ([tokens]); or `NAME.int4`, uint8 [outputs, blocks, 16], two integers in a byte, with
`NAME.scale` [outputs, blocks].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...verification.damage import packed, unpacked
from ..editing import EditedBundle
from .fault import BundleFault
from .weights import change_weight, swap_rows

Inject = Callable[[EditedBundle], None]

INNER = "layers.1.feed_forward.inner.weight"
OUTPUT = "layers.0.self_attention.output.weight"


def _one_scaled(factor: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(scales: NDArray[Any]) -> NDArray[Any]:
        scales[np.unravel_index(np.argmax(np.abs(scales)), scales.shape)] *= np.float32(factor)
        return scales

    return change


def _all_scaled(factor: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda scales: scales * np.float32(factor)


def _column_off_by_one(integers: NDArray[Any]) -> NDArray[Any]:
    """All integers of one output are one too large."""
    integers[:, 3] = np.minimum(integers[:, 3].astype(int) + 1, 63)
    return integers


def _one_column_off_by_one(nibbles: NDArray[Any]) -> NDArray[Any]:
    values = unpacked(nibbles)
    values[3] = np.minimum(values[3] + 1, 7)
    return packed(values, nibbles.shape)


def _all_off_by_one(nibbles: NDArray[Any]) -> NDArray[Any]:
    """The zero point is 7 in place of 8."""
    return packed(np.minimum(unpacked(nibbles) + 1, 7).astype(np.int8), nibbles.shape)


def _column_negated(integers: NDArray[Any]) -> NDArray[Any]:
    integers[:, 5] = -integers[:, 5]
    return integers


def _row_negated(nibbles: NDArray[Any]) -> NDArray[Any]:
    values = unpacked(nibbles)
    values[5] = np.minimum(-values[5], 7)
    return packed(values, nibbles.shape)


def _nibbles_swapped(nibbles: NDArray[Any]) -> NDArray[Any]:
    """The two integers of each byte of one output change places."""
    nibbles[7] = (nibbles[7] >> 4) | ((nibbles[7] & 15) << 4)
    return nibbles


def _block_zeroed(nibbles: NDArray[Any]) -> NDArray[Any]:
    nibbles[4, 0] = 0x88
    return nibbles


def _inputs_zeroed(integers: NDArray[Any]) -> NDArray[Any]:
    """A run of integers of one output is zero, as of a chunk that was not written."""
    integers[:16, 4] = 0
    return integers


def _block_scales_swapped(scales: NDArray[Any]) -> NDArray[Any]:
    """The scales of two blocks of each output change places."""
    return np.ascontiguousarray(scales[:, ::-1])


def _neighbours_swapped(scales: NDArray[Any]) -> NDArray[Any]:
    """The scales of two outputs change places, those that differ most."""
    flat = scales.reshape(len(scales), -1)
    one, other = int(np.argmin(flat[:, 0])), int(np.argmax(flat[:, 0]))
    return swap_rows(one, other)(scales)


def _halved(scales: NDArray[Any]) -> NDArray[Any]:
    return scales * np.float32(0.5)


def _clipped(integers: NDArray[Any]) -> NDArray[Any]:
    """The integers are clipped as if they had one bit less."""
    return np.asarray(np.clip(integers, -31, 31))


def _nibbles_clipped(nibbles: NDArray[Any]) -> NDArray[Any]:
    return packed(np.clip(unpacked(nibbles), -5, 5).astype(np.int8), nibbles.shape)


def _table_row(edited: EditedBundle) -> None:
    """The scale of one token's embedding is 5 % off, wherever it is used."""
    for editor in edited.editors.values():
        for name in editor.initializers:
            if "embedding.tokens.weight.scale" in name:
                scales = editor.weight(name)
                scales[11] *= np.float32(1.05)
                editor.set_weight(name, scales)


def _fault(name: str, inject: Inject, *bundles: str) -> BundleFault:
    return BundleFault(name, "scales and integers", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "one scale is 2 % off",
        change_weight("decoder", f"{INNER}.scale", _one_scaled(1.02)),
        "bart cpu int8",
        "g2p-en cpu int8",
        "g2p-en cpu int4",
    ),
    _fault(
        "all scales of a weight are 2 % off",
        change_weight("decoder", f"{INNER}.scale", _all_scaled(1.02)),
        "t5 cpu int8",
        "gpt2 cpu int4",
        "bible-en-es cpu int8",
    ),
    _fault(
        "all scales of a weight of the encoder are 2 % off",
        change_weight("encoder", f"{OUTPUT}.scale", _all_scaled(0.98)),
        "whisper cpu int8",
        "bert-embedding cpu int8",
        "bert-embedding openvino int8",
        "t5 cpu int4",
    ),
    _fault(
        "the scales of two outputs are swapped",
        change_weight("decoder", f"{OUTPUT}.scale", _neighbours_swapped),
        "gpt2 cpu int8",
        "bart cpu int4",
    ),
    _fault(
        "the scales of blocks are in reverse order",
        change_weight("decoder", "layers.0.feed_forward.outer.weight.scale", _block_scales_swapped),
        "bart cpu int4",
        "gpt2 cpu int4",
    ),
    _fault(
        "the integers of an output are one too large",
        change_weight("decoder", f"{INNER}.int8", _column_off_by_one),
        "gpt2 cpu int8",
        "g2p-en cpu int8",
    ),
    _fault(
        "the integers of one output are one too large",
        change_weight("decoder", f"{INNER}.int4", _one_column_off_by_one),
        "bart cpu int4",
        "g2p-en cpu int4",
    ),
    _fault(
        "the zero point is one off",
        change_weight("decoder", f"{OUTPUT}.int4", _all_off_by_one),
        "t5 cpu int4",
        "verses-en cpu int4",
    ),
    _fault(
        "the sign of an output is wrong",
        change_weight("decoder", f"{OUTPUT}.int8", _column_negated),
        "bart cpu int8",
    ),
    _fault(
        "the sign of one output is wrong",
        change_weight("decoder", f"{OUTPUT}.int4", _row_negated),
        "g2p-en cpu int4",
    ),
    _fault(
        "the nibbles of an output are swapped",
        change_weight("decoder", f"{INNER}.int4", _nibbles_swapped),
        "gpt2 cpu int4",
        "g2p-en cpu int4",
    ),
    _fault(
        "a block is zero",
        change_weight("decoder", f"{INNER}.int4", _block_zeroed),
        "bart cpu int4",
        "verses-en cpu int4",
    ),
    _fault(
        "16 integers of an output are zero",
        change_weight("encoder", f"{OUTPUT}.int8", _inputs_zeroed),
        "g2p-en cpu int8",
        "bert-embedding cpu int8",
        "bert-embedding openvino int8",
    ),
    _fault(
        "the scales of cached keys are halved",
        change_weight("decoder", "key_scale", _halved),
        "gpt2 cpu int8",
        "g2p-en cpu int4",
    ),
    _fault(
        "the scales of cached values are doubled",
        change_weight("decoder", "value_scale", _all_scaled(2.0)),
        "bart cpu int8",
        "t5 cpu int4",
    ),
    _fault(
        "integers are clipped to 31",
        change_weight("decoder", f"{OUTPUT}.int8", _clipped),
        "bart cpu int8",
        "whisper cpu int8",
    ),
    _fault(
        "integers are clipped to 5",
        change_weight("decoder", f"{OUTPUT}.int4", _nibbles_clipped),
        "gpt2 cpu int4",
    ),
    _fault(
        "the scale of one token's embedding is 5 % off",
        _table_row,
        "bart cpu int8",
        "g2p-en cpu int8",
        "gpt2 cpu int4",
    ),
)
"""Faults of scales, zero points, blocks, nibbles and integers."""
