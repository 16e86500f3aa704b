"""Recurrent layers of decoders, which keep one state for each row instead of keys and values.

A step takes the same time and memory at every position.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Carry = Callable[[Tensor, Tensor], Tensor]
"""Forget gates and updates [B, Q, D] of queries -> the state [B, Q, D] after each query."""


def states_after(forget: Tensor, update: Tensor, state: Tensor) -> Tensor:
    """Compute the state after each query, c_t = f_t * c_(t-1) + u_t.

    Args:
        forget: f, [B, Q, D]
        update: u, [B, Q, D]
        state: the state before the first query, [B, D]

    Returns:
        [B, Q, D]
    """
    states = []
    for gate, added in zip(forget.unbind(1), update.unbind(1), strict=True):
        state = gate * state + added
        states.append(state)
    return torch.stack(states, 1)


class SSRU(nn.Module):
    """The simpler simple recurrent unit (Kim et al. 2019, section 4.1).

    f_t = sigmoid(W_f x_t + b_f); c_t = f_t * c_(t-1) + (1 - f_t) * W x_t; the output is relu(c_t).
    The state is 0 before the first token.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.forget = nn.Linear(d_model, d_model)
        self.update = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        """Apply the unit to queries, [B, Q, D] -> [B, Q, D]; `carry` holds the state."""
        forget = torch.sigmoid(self.forget(x))
        return F.relu(carry(forget, (1 - forget) * self.update(x)))
