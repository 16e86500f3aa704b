"""The attention of a model to one input, with the tokens along both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Attention:
    """How much each token attends to each other one: rows sum to 1.

    Attributes:
        source: tokens of the source as the vocabulary writes them; of audio, times in seconds
        read: what the decoder reads: start token, prompt, and the target but for its last token;
            of a decoder alone, the text
        target: the tokens that follow each of these; the end token after a text that is just read
        encoder: self-attention of the source [layers, heads, S, S]; None: there is no encoder
        decoder: self-attention of what the decoder reads [layers, heads, T, T]; None: there is no
            decoder
        cross: attention of what the decoder reads to the source [layers, heads, T, S]; None unless
            there are both
        alignment_heads: the layers and heads whose cross-attention aligns words
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
        """The mean of the cross-attention that aligns words, [T, S].

        Without heads that the model names, it is that of the last layer but one, which Garg et al.
        2019 (section 3.2) found to align best.

        Raises:
            ValueError: there is no cross-attention.
        """
        if self.cross is None:
            raise ValueError("expected cross-attention, found none")
        if self.alignment_heads:
            chosen = [self.cross[layer, head] for layer, head in self.alignment_heads]
            return np.asarray(np.mean(chosen, axis=0))
        return np.asarray(self.cross[max(0, len(self.cross) - 2)].mean(axis=0))
