"""The graphs of the contract as PyTorch modules, thin wrappers around the reference models.

The reference model's own code is traced, with three replacements: `scaled_dot_product_attention` by
ONNX `Attention` (opset 24; q, k, v and mask only), the decoder's memory by caches of fixed capacity
that `TensorScatter` (opset 24) writes in place, or by states that `Scan` (opset 24) or `GRU` (opset
22) moves on, and `torch.reshape` in attention by the same without a proof of its shape.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    KeysValues,
    LanguageModel,
    Transformer,
)
from dragoman.reference_model.attention import MultiHeadAttention
from dragoman.reference_model.layers import GRU, RecurrentUnit

OPSET = 24

SUPPRESSED_LOGIT = -1e4
"""Added to the logit of a token that must not be selected; representable in 16 bits."""

SMALLEST_VOCABULARY = 2048
"""The vocabulary below which the time of ArgMax is negligible."""


class EncoderGraph(nn.Module):
    """The encoder: source, source_mask -> cross_key_i, cross_value_i of each decoder layer i."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_mask: Tensor | None = None) -> list[KeysValues]:
        """Encode a source, see `Transformer.encode`."""
        return self.model.encode(source, source_mask)


class EncoderModelGraph(nn.Module):
    """An encoder-only model: source, source_mask, any token_type -> outputs of its head."""

    def __init__(self, model: EncoderModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: Tensor, source_mask: Tensor, token_type: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute the outputs of the head, see `EncoderModel.forward`."""
        outputs: tuple[Tensor, ...] = self.model(source, source_mask, token_type)
        return outputs


class GreedySelection(nn.Module):
    """Selects the most probable token after the last query.

    Of a large vocabulary, the maximum of each block is computed first, then the first block with
    the largest one, then its first index in this block. So it is the first of equal values, as of
    ONNX `ArgMax` (opset 13), which takes much longer.
    """

    suppression: Tensor | None
    """Added to the logits before a token is selected."""

    def __init__(self, suppressed: Sequence[int], vocabulary: int) -> None:
        super().__init__()
        suppression = None
        if suppressed:
            suppression = torch.zeros(vocabulary)
            suppression[list(suppressed)] = SUPPRESSED_LOGIT
        self.register_buffer("suppression", suppression)
        self.block_size, self.added = blocks_of(vocabulary)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Select from logits [B, Q, V] a token int64 [B]; return its log-probability [B], too."""
        last = logits[:, -1]
        if self.suppression is not None:
            last = last + self.suppression
        token = self._first_of_largest(last)
        log_probabilities = torch.log_softmax(last, -1, torch.float32)
        return token, log_probabilities.gather(1, token[:, None]).squeeze(1)

    def _first_of_largest(self, logits: Tensor) -> Tensor:
        size = self.block_size
        if size == logits.shape[1]:
            return logits.argmax(-1)
        if self.added:
            logits = nn.functional.pad(logits, (0, self.added), value=-torch.inf)
        blocks = logits.view(-1, logits.shape[1] // size, size)
        block = blocks.amax(2).argmax(1)
        chosen = blocks.gather(1, block[:, None, None].expand(-1, 1, size)).squeeze(1)
        return block * size + chosen.argmax(1)


def blocks_of(vocabulary: int) -> tuple[int, int]:
    """Return the size of the blocks of a vocabulary, and the number of values to add to it.

    The time grows with the size and the number of blocks. Adding values copies the logits.
    """
    if vocabulary < SMALLEST_VOCABULARY:
        return vocabulary, 0
    root = math.isqrt(vocabulary)
    size = vocabulary // max(d for d in range(1, root + 1) if vocabulary % d == 0)
    return (size, 0) if size <= 4 * root else (root, -vocabulary % root)


class _StepGraph(nn.Module):
    def __init__(self, model: AutoregressiveModel) -> None:
        super().__init__()
        self.model = model
        suppressed = model.generation.suppressed_token_ids
        self.choose = GreedySelection(suppressed, model.config.target_vocab_size)


class DecoderStepGraph(_StepGraph):
    """A step of a decoder: queries -> their logits, the greedy token after the last, new caches."""

    model: Transformer

    def forward(
        self,
        token: Tensor,
        position: Tensor,
        source_mask: Tensor,
        cross: Sequence[KeysValues],
        past: Sequence[Any],
    ) -> tuple[Tensor, Tensor, Tensor, list[Any]]:
        """Compute one step.

        Args:
            token: int64 [B, Q]; row b of B belongs to source b // (B / G) of G
            position: int64 [B], where each row's first query is written
            source_mask: bool [G, S]
            cross: keys and values of the sources [G, H, S, Dh] for each layer
            past: caches [B, H, C, Dh] for each layer, or the state [B, D] of a recurrent decoder

        Returns:
            logits [B, Q, V], next token int64 [B], its log-probability float32 [B], the new `past`
        """
        memory = _GraphMemory(past, position)
        logits = self.model.decode(token, position, source_mask, cross, memory)
        # The returned logits are the model's own, without suppression.
        return logits, *self.choose(logits), memory.present


class LanguageModelStepGraph(_StepGraph):
    """A step of a decoder-only model: the logits of the queries to read."""

    model: LanguageModel

    def forward(
        self, token: Tensor, position: Tensor, read: Tensor, past: Sequence[KeysValues]
    ) -> tuple[Tensor, Tensor, Tensor, list[KeysValues]]:
        """Compute one step; other arguments and results are those of `DecoderStepGraph.forward`.

        Args:
            read: int64 [B, R], the queries of each row whose logits [B, R, V] are computed
        """
        memory = _GraphMemory(past, position)
        hidden = self.model.decode(token, position, memory)
        index = read[..., None].expand(-1, -1, hidden.shape[-1])
        logits = self.model.output(hidden.gather(1, index))
        return logits, *self.choose(logits), memory.present


STATES = "States"
"""An operator of `SCRATCH_DOMAIN`: state [B, D], gates and updates [B, Q, D] -> the state after the
last query, and the states after each. `exporter.spell_out_states` replaces it."""
SCRATCH_DOMAIN = "dragoman"


class _GraphMemory:
    """The decoder's caches or states as graph inputs and outputs, see `reference_model.Memory`."""

    def __init__(self, past: Sequence[Any], position: Tensor) -> None:
        self.past = past
        self.position = position
        self.present: list[Any] = []

    def append(self, layer: int, key: Tensor, value: Tensor) -> KeysValues:
        past_key, past_value = self.past[layer]
        caches = self._scatter(past_key, key), self._scatter(past_value, value)
        self.present.append(caches)
        return caches

    def length(self, queries: int) -> int:
        capacity: int = self.past[0][0].shape[2]
        return capacity

    def _scatter(self, cache: Tensor, new: Tensor) -> Tensor:
        return torch.onnx.ops.symbolic(
            "TensorScatter",
            (cache, new, self.position),
            {"axis": 2, "mode": "linear"},
            dtype=cache.dtype,
            shape=cache.shape,
            version=OPSET,
        )

    def carry(self, layer: int, unit: RecurrentUnit, *inputs: Tensor) -> Tensor:
        past = self.past[layer]
        if isinstance(unit, GRU):
            last, states = _gru(unit, past, *inputs)
        else:
            last, states = torch.onnx.ops.symbolic_multi_out(
                f"{SCRATCH_DOMAIN}::{STATES}",
                (past, *inputs),
                dtypes=(past.dtype, past.dtype),
                shapes=(past.shape, inputs[0].shape),
                version=1,
            )
        self.present.append(last)
        return states


def _gru(unit: GRU, past: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the state after the last query, and the states after each, by one ONNX operator."""
    (rows, queries, size), weights = x.shape, (unit.of_input, unit.of_state, unit.bias)
    states, last = torch.onnx.ops.symbolic_multi_out(
        "GRU",
        (x.transpose(0, 1), *weights, None, past[None]),
        {"hidden_size": size, "linear_before_reset": 1},
        dtypes=(x.dtype, x.dtype),
        shapes=((queries, 1, rows, size), (1, rows, size)),
        version=OPSET,
    )
    return last.squeeze(0), states.squeeze(1).transpose(0, 1)


def onnx_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """Compute `reference_model.scaled_dot_product_attention` by one ONNX operator.

    ONNX Runtime does not broadcast the query axis of a mask, so a bool mask is expanded.
    """
    inputs = [query, key, value]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = mask.expand(query.shape[0], -1, query.shape[2], key.shape[2])
        inputs.append(mask)
    return torch.onnx.ops.symbolic(
        "Attention",
        inputs,
        {} if scale is None else {"scale": scale},
        dtype=query.dtype,
        shape=(*query.shape[:3], value.shape[3]),
        version=OPSET,
    )


torch.library.define("dragoman::reshape", "(Tensor x, SymInt[] shape) -> Tensor")
RESHAPE = torch.ops.dragoman.reshape
"""`torch.reshape`, whose shape is trusted."""


@torch.library.register_fake("dragoman::reshape")  # type: ignore[untyped-decorator]
def _reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Trust the shape: its proof takes as long as all else."""
    sizes = list(shape)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.numel() // -math.prod(sizes)
    return x.new_empty(sizes)


@contextlib.contextmanager
def exporting(model: nn.Module) -> Iterator[None]:
    """Replace attention by ONNX operators, and turn off training and dropout, within the block."""
    before = [(module, module.training, getattr(module, "p", 0.0)) for module in model.modules()]
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    originals = [(attention.attend, attention.reshape) for attention in attentions]
    for attention in attentions:
        attention.attend, attention.reshape = onnx_attention, RESHAPE
    for module in model.eval().modules():
        if isinstance(module, nn.Dropout):
            module.p = 0  # names of values would depend on it
    try:
        yield
    finally:
        for attention, own in zip(attentions, originals, strict=True):
            attention.attend, attention.reshape = own
        for module, mode, share in before:
            module.training = mode
            if isinstance(module, nn.Dropout):
                module.p = share
