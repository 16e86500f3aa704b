"""What happens to a batch that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..backends.errors import BackendError

Input = TypeVar("Input")
Outcome = TypeVar("Outcome")


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
