"""Divergences by what people find them by: the file and line of an input, and texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dragoman.errors import DragomanError
from dragoman.runtime import Model
from dragoman.runtime.format.records import Divergence, OnePassParity, TokenParity

from .inputs.parity_inputs import ParityInputs

WITH_TEXTS = 50
"""So many divergences keep their texts, those with the largest margins."""
MOST_CHARACTERS = 2000


def named(
    tokens: TokenParity,
    model: Model,
    inputs: ParityInputs,
    expected: Sequence[Sequence[int]],
    found: Sequence[Sequence[int]],
) -> TokenParity:
    """Level 2 with origins and texts.

    Args:
        expected, found: outputs of the oracle and of the bundle for all inputs
    """
    by_margin = sorted(tokens.divergences, key=lambda d: -d.margin)
    kept = {divergence.input for divergence in by_margin[:WITH_TEXTS]}
    decode = inputs.decode or model.detokenize

    def with_names(divergence: Divergence) -> Divergence:
        index = divergence.input
        origin = inputs.origins[index] if inputs.origins else ""
        if index not in kept:
            return dataclasses.replace(divergence, origin=origin)
        return dataclasses.replace(
            divergence,
            origin=origin,
            source=None if inputs.texts is None else inputs.texts[index][:MOST_CHARACTERS],
            expected=_text(decode, expected[index]),
            found=_text(model.detokenize, found[index]),
        )

    return dataclasses.replace(
        tokens,
        divergences=tuple(map(with_names, tokens.divergences)),
        one_pass=None if tokens.one_pass is None else _worst_named(tokens.one_pass, inputs),
    )


def _worst_named(one_pass: OnePassParity, inputs: ParityInputs) -> OnePassParity:
    if one_pass.worst is None or not inputs.origins:
        return one_pass
    origin = inputs.origins[one_pass.worst.input]
    return dataclasses.replace(one_pass, worst=dataclasses.replace(one_pass.worst, origin=origin))


def _text(decode: Callable[[Sequence[int]], str | None], tokens: Sequence[int]) -> str | None:
    try:
        text = decode(tokens)
    except DragomanError:  # the tokenizer fails on these tokens: their numbers are recorded
        return None
    return None if text is None else text[:MOST_CHARACTERS]
