"""The interface of loaded models of all tools: decode tokens, transcribe a clip, encode texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

LANGUAGE = "en"
"""Of all clips, which tools for speech are told."""


class Batch(NamedTuple):
    """Sources to be decoded as one batch.

    Attributes:
        sources: token ids, without padding
        new_tokens: tokens that every row generates; the end token does not end it early
        num_beams: 1 for greedy decoding. Beams are ranked by the sum of log-probabilities over the
            length, and all take every step
    """

    sources: list[list[int]]
    new_tokens: int
    num_beams: int = 1


Rows = list[list[int]]
"""Generated token ids of each source, without the start token; of beams, the best."""

Generate = Callable[[Batch], Rows]


class Stages(NamedTuple):
    """Encoder and decoder timed apart.

    Attributes:
        encoder, decoder: seconds; the decoder's include the prompt
        tokens: generated tokens, the end token included
    """

    encoder: float
    decoder: float
    tokens: int


class Transcriber(Protocol):
    """A speech model, loaded; decodes greedily, without timestamps."""

    def transcribe(self, clip: Path) -> str:
        """The text of an audio file by the tool's own call: reading the file and computing its
        features are included.
        """

    def stages(self, clip: Path) -> Stages:
        """Transcribe an audio file and time encoder and decoder by themselves."""


Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Encodes texts as one batch: a vector for each, [N, D]."""
