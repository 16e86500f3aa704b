"""The attention maps of one input, with the tokens of both axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention weights of all layers and heads; each row sums to 1.

    Attributes:
        source: source tokens as the vocabulary spells them; for audio, times in seconds
        read: decoder inputs: start token, prompt and target without its last token; for a
            decoder-only model, the text
        target: the token after each decoder input; the end token after a text without a target
        encoder: encoder self-attention [layers, heads, S, S]; None without an encoder
        decoder: decoder self-attention [layers, heads, T, T]; None without a decoder
        cross: cross-attention [layers, heads, T, S]; None unless there are encoder and decoder
        alignment_heads: (layer, head) pairs whose cross-attention aligns words
    """

    source: tuple[str, ...]
    read: tuple[str, ...]
    target: tuple[str, ...]
    encoder: Weights | None
    decoder: Weights | None
    cross: Weights | None
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @property
    def aligning(self) -> Weights:
        """Mean cross-attention of the alignment heads, [T, S].

        If the model names no alignment heads, all heads of the penultimate layer are used, which
        align best according to Garg et al. 2019 (section 3.2).

        Raises:
            ValueError: there is no cross-attention.
        """
        if self.cross is None:
            raise ValueError("expected cross-attention, found none")
        if self.alignment_heads:
            chosen = [self.cross[layer, head] for layer, head in self.alignment_heads]
            return np.asarray(np.mean(chosen, axis=0))
        return np.asarray(self.cross[max(0, len(self.cross) - 2)].mean(axis=0))
