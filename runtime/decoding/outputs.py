"""Choices gathered into outputs, and what happens to a batch that fails: for texts and speech."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..backends.errors import BackendError
from .greedy import Choice

Input = TypeVar("Input")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Output:
    """What was generated for one row of a batch.

    Attributes:
        tokens: without the end token
        log_probability: sum over the tokens, including the end token
        end_token: the token that ended it; None: its limit did
    """

    tokens: tuple[int, ...]
    log_probability: float
    end_token: int | None


def outputs(choices: Iterable[Choice], rows: int, end_tokens: Sequence[int]) -> list[Output]:
    """The choices of a batch by row.

    Args:
        end_tokens: the tokens that end a row

    Raises:
        BackendError: a probability is not a finite number.
    """
    tokens: list[list[int]] = [[] for _ in range(rows)]
    log_probability = [0.0] * rows
    for choice in choices:
        tokens[choice.row].append(choice.token)
        log_probability[choice.row] += choice.log_probability
    if not np.isfinite(log_probability).all():
        raise BackendError("the model's logits are not finite numbers")
    return [
        Output(tuple(row[:-1]), total, row[-1])
        if row[-1] in end_tokens
        else Output(tuple(row), total, None)
        for row, total in zip(tokens, log_probability, strict=True)
    ]


def decode_or_split(
    decode: Callable[[list[Input]], list[Outcome]],
    inputs: list[Input],
    failed: Callable[[str], Outcome],
) -> list[Outcome]:
    """Decode a batch; if the backend fails, as for lack of memory, decode its halves in turn.

    Args:
        failed: the outcome of an input that fails alone, from the reason
    """
    try:
        return decode(inputs)
    except (BackendError, MemoryError) as error:
        if len(inputs) == 1:
            return [failed(str(error) or "not enough memory")]
    half = len(inputs) // 2
    return [
        *decode_or_split(decode, inputs[:half], failed),
        *decode_or_split(decode, inputs[half:], failed),
    ]
