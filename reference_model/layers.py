"""The layers of both stacks: sections 3.1 and 3.3 of "Attention Is All You Need"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CrossAttention, MultiHeadAttention
from .config import Activation, DecoderKind, ModelConfig

KeysValues = tuple[Tensor, Tensor]
"""Keys [B, H, K, Dh] and values [B, H, K, Dv] of one attention layer."""


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by x * sigmoid(1.702 x) (Hendrycks & Gimpel 2016)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (Ba et al. 2016), with a gain and a bias."""

    def __init__(self, size: int, *, gain: bool, bias: bool, epsilon: float) -> None:
        super().__init__()
        self.size = size
        self.epsilon = epsilon
        self.gain = nn.Parameter(torch.ones(size)) if gain else None
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, [..., D] -> [..., D]."""
        return F.layer_norm(x, (self.size,), self.gain, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization over the last axis (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, *, gain: bool, epsilon: float) -> None:
        super().__init__()
        self.size = size
        self.epsilon = epsilon
        self.gain = nn.Parameter(torch.ones(size)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, [..., D] -> [..., D]."""
        return F.rms_norm(x, (self.size,), self.gain, self.epsilon)


Norm = LayerNorm | RMSNorm


class SSRU(nn.Module):
    """The simpler simple recurrent unit (Kim et al. 2019, section 4.1).

    f_t = sigmoid(W_f x_t + b_f); c_t = f_t * c_(t-1) + (1 - f_t) * W x_t; the output is relu(c_t).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.forget = nn.Linear(d_model, d_model)
        self.update = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """Apply the unit to queries, [B, Q, D] -> [B, Q, D]; `carry` holds the state."""
        forget = torch.sigmoid(self.forget(x))
        return F.relu(carry(self, forget, (1 - forget) * self.update(x)))

    def states_after(self, state: Tensor, forget: Tensor, update: Tensor) -> Tensor:
        """Compute the state after each query, c_t = f_t * c_(t-1) + u_t: [B, Q, D].

        Args:
            state: the state before the first query, [B, D]
            forget: f, [B, Q, D]
            update: u, [B, Q, D]
        """
        states = []
        for gate, added in zip(forget.unbind(1), update.unbind(1), strict=True):
            state = gate * state + added
            states.append(state)
        return torch.stack(states, 1)


class GRU(nn.Module):
    """The gated recurrent unit (Cho et al. 2014, section 2.3), as `torch.nn.GRU` computes it.

    z_t = sigmoid(W_z x_t + U_z h_(t-1)), r_t likewise, n_t = tanh(W_n x_t + r_t * (U_n h_(t-1))),
    each product with a bias; h_t = (1 - z_t) * n_t + z_t * h_(t-1), which is the output. Weights
    are those of ONNX `GRU` (opset 22): z, r and n, W before U in the bias.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.of_input = nn.Parameter(torch.empty(1, 3 * d_model, d_model))
        self.of_state = nn.Parameter(torch.empty(1, 3 * d_model, d_model))
        self.bias = nn.Parameter(torch.empty(1, 6 * d_model))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_model**-0.5), d_model**-0.5)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """Apply the unit to queries, [B, Q, D] -> [B, Q, D]; `carry` holds the state."""
        return carry(self, x)

    def states_after(self, state: Tensor, x: Tensor) -> Tensor:
        """Compute the state after each query, [B, Q, D], from the one before the first, [B, D]."""
        of_input, of_state = self.bias[0].chunk(2)
        states = []
        for step in F.linear(x, self.of_input[0], of_input).unbind(1):
            update, reset, new = step.chunk(3, -1)
            own_update, own_reset, own = F.linear(state, self.of_state[0], of_state).chunk(3, -1)
            update, reset = torch.sigmoid(update + own_update), torch.sigmoid(reset + own_reset)
            state = torch.lerp(torch.tanh(new + reset * own), state, update)
            states.append(state)
        return torch.stack(states, 1)


RecurrentUnit = SSRU | GRU
UNITS: dict[DecoderKind, type[RecurrentUnit]] = {"ssru": SSRU, "gru": GRU}

Carry = Callable[..., Tensor]
"""A unit and the inputs [B, Q, D] of its `states_after` -> the state [B, Q, D] after each query."""


def make_norm(config: ModelConfig, size: int | None = None) -> Norm:
    """Make a norm of the kind that a configuration states, of size d_model by default."""
    size = size or config.d_model
    if config.norm == "rms":
        return RMSNorm(size, gain=config.norm_gain, epsilon=config.norm_epsilon)
    return LayerNorm(
        size, gain=config.norm_gain, bias=config.norm_bias, epsilon=config.norm_epsilon
    )


class FeedForward(nn.Module):
    """The feed-forward network activation(x W_1 + b_1) W_2 + b_2, equation 2.

    A gated one (Shazeer 2020, equation 6) is (activation(x W_gate) * x W_1) W_2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, inner, bias = config.d_model, config.d_ff, config.feed_forward_bias
        self.gate = nn.Linear(width, inner, bias=bias) if config.gated_feed_forward else None
        self.inner = nn.Linear(width, inner, bias=bias)
        self.outer = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.feed_forward_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position, [B, T, D] -> [B, T, D]."""
        if self.gate is None:
            inner = self.activation(self.inner(x))
        else:
            inner = self.activation(self.gate(x)) * self.inner(x)
        return self.outer(self.dropout(inner) if self.training else inner)


class Residual(nn.Module):
    """A residual connection around a sub-layer, with dropout and pre- or post-norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.order = config.norm_order
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply the sub-layer to x, [B, T, D] -> [B, T, D]."""
        if self.order == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        normalized: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return normalized


class EncoderLayer(nn.Module):
    """A layer of an encoder: self-attention, then a feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer, [B, S, D] -> [B, S, D], with a mask as in `MultiHeadAttention`."""
        attention = self.self_attention
        x = self.self_attention_residual(x, lambda y: attention(y, *attention.keys_values(y), mask))
        x = self.feed_forward_residual(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """A layer of a decoder: self-attention, cross-attention, then a feed-forward network.

    A recurrent unit may stand in the place of self-attention. Without an encoder there is no
    cross-attention.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_recurrent = config.is_recurrent
        if self.is_recurrent:
            self.recurrence = UNITS[config.decoder_kind](config.d_model)
            self.recurrence_residual = Residual(config)
        else:
            self.self_attention = MultiHeadAttention(config)
            self.self_attention_residual = Residual(config)
        if config.has_encoder:
            # Rows share a source in a search for a target only.
            kind = CrossAttention if config.has_decoder else MultiHeadAttention
            self.cross_attention = kind(config)
            self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        *,
        remember: Callable[[Tensor, Tensor], KeysValues],
        carry: Carry,
        self_mask: Tensor | None,
        cross: KeysValues | None,
        cross_mask: Tensor | None,
    ) -> Tensor:
        """Apply the layer to queries, [B, Q, D] -> [B, Q, D].

        Args:
            remember: takes the keys and values of these queries; returns those of all positions so
                far (with a cache) or the same ones (without)
            carry: moves the state of a recurrent unit on by these queries; returns its states
            self_mask: bool [B, 1, Q, K], or float [B, H, Q, K] to be added to the scores;
                None for a recurrent unit
            cross: keys and values of the sources, [G, H, S, Dh] each, see `CrossAttention`; None
                without an encoder
            cross_mask: bool [G, 1, 1, S]
        """
        if self.is_recurrent:
            x = self.recurrence_residual(x, lambda y: self.recurrence(y, carry))
        else:
            attention = self.self_attention
            x = self.self_attention_residual(
                x, lambda y: attention(y, *remember(*attention.keys_values(y)), self_mask)
            )
        if cross is not None:
            x = self.cross_attention_residual(
                x, lambda y: self.cross_attention(y, *cross, cross_mask)
            )
        x = self.feed_forward_residual(x, self.feed_forward)
        return x
