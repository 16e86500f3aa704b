"""Makes inputs at full capacity and of the whole vocabulary, which ordinary inputs do not reach.

A graph may be wrong at its last positions, at a bucket of relative positions, or for single tokens.
Probes have as many tokens as the model has positions, one less, or pieces of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.reference_model import ReferenceModel, Transformer
from dragoman.runtime.decoding.request import EncoderInput, as_batch
from dragoman.runtime.format.model_spec import ModelSpec

MOST_OPERATIONS = 2e11
"""Multiplications that the oracle may take for the vocabulary; the ends of the capacity are
compared whatever they take. Seconds on two cores, in float64."""

SEED = 0
FULL, ONE_LESS = "at full capacity", "at one less than full capacity"
PIECE = 256
"""Tokens of the vocabulary that are read at once."""
MOST_SCORES = 2**19
"""Pairs of positions up to which both sides of a probe are long at once, and up to which a probe is
computed together with others."""

SHORT, SHORT_PROBES, FEWEST_SHORT = 12, 16, 6
"""The most tokens of short probes, and how many there are; fewer of large models."""
SHORT_WEIGHTS = 2e9
"""Weights that are read once for all short probes."""


@dataclass(frozen=True)
class Probe:
    """A source and what the decoder reads."""

    source: EncoderInput
    """Token ids, or features of audio; empty for a decoder-only model."""
    read: Sequence[int]
    """The decoder's input, from the start token on; empty for an encoder-only model."""
    name: str
    """For problems, such as "at full capacity"."""

    @property
    def is_long(self) -> bool:
        """Whether it is so long that no other probe is padded to its length."""
        source = 0 if isinstance(self.source, np.ndarray) else len(self.source)
        return max(source, len(self.read)) ** 2 > MOST_SCORES


def batch_of(
    probes: Sequence[Probe], spec: ModelSpec, multiple: int = 1
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Make a batch of the sources of probes, with its mask; see `as_batch`."""
    return as_batch([probe.source if spec.has_encoder else [] for probe in probes], spec, multiple)


def probes_for(oracle: ReferenceModel, sounds: Sequence[EncoderInput] = ()) -> list[Probe]:
    """Make the probes of a model at full capacity, and then the probes of the vocabulary."""
    generator = np.random.default_rng(SEED)
    config = oracle.config
    start = oracle.prompt([]) if isinstance(oracle, Transformer) else []
    sources = 0 if config.takes_audio else config.source_vocab_size or 0
    longest = (config.max_source_positions if sources else 0, config.max_target_positions)
    ids: list[list[int]] = [
        generator.permutation(size).tolist() for size in (sources, config.target_vocab_size)
    ]
    taken = [0, 0]

    def probe(lengths: tuple[int, int], name: str) -> Probe:
        pieces = []
        for side, length in enumerate((lengths[0], lengths[1] - len(start))):
            own, first = ids[side], taken[side]  # which begin again where they end
            size = max(1, length) if own else 0
            pieces.append([own[(first + i) % len(own)] for i in range(size)])
            taken[side] += size
        source: EncoderInput = sounds[0] if config.takes_audio else pieces[0]
        return Probe(source, [*start, *pieces[1]] if config.has_decoder else [], name)

    shorter = (longest[0] - 1, longest[1] - 1)
    if longest[0] * longest[1] <= MOST_SCORES:
        probes = [probe(longest, FULL), probe(shorter, ONE_LESS)]
    else:  # one side after the other
        few = len(start) + SHORT
        probes = [
            probe((min(SHORT, longest[0]), longest[1]), f"{FULL} of targets"),
            probe((longest[0], few), f"{FULL} of sources"),
        ]
    tokens = min(config.max_source_positions, PIECE) + min(config.max_target_positions, PIECE)
    most = int(MOST_OPERATIONS / max(1, parameters_of(oracle) * tokens))
    while len(probes) < most and any(t < len(i) for t, i in zip(taken, ids, strict=True)):
        probes.append(probe((min(longest[0], PIECE), min(longest[1], PIECE)), "of the vocabulary"))
    return probes


def short_probes(oracle: ReferenceModel, sounds: Sequence[EncoderInput] = ()) -> list[Probe]:
    """Make probes of a few tokens, of random lengths, to compute in batches."""
    generator = np.random.default_rng(SEED)
    config = oracle.config
    start = oracle.prompt([]) if isinstance(oracle, Transformer) else []
    sources = 0 if config.takes_audio else config.source_vocab_size or 0
    most_source = min(SHORT, config.max_source_positions)
    most_target = min(SHORT, config.max_target_positions - len(start))
    probes = []
    affordable = int(SHORT_WEIGHTS / max(1, parameters_of(oracle)))
    count = min(SHORT_PROBES, max(FEWEST_SHORT, affordable))
    for number in range(count if not config.takes_audio else len(sounds)):
        source: EncoderInput = []
        if config.takes_audio:
            source = sounds[number]
        elif sources:
            length = int(generator.integers(1, most_source + 1))
            source = generator.integers(0, sources, length).tolist()
        read: list[int] = []
        if config.has_decoder:
            length = int(generator.integers(1, most_target + 1))
            read = [*start, *generator.integers(0, config.target_vocab_size, length).tolist()]
        probes.append(Probe(source, read, f"short, number {number}"))
    return probes


def parameters_of(oracle: ReferenceModel) -> int:
    """Count the parameters of a model, tied ones once."""
    return sum(parameter.numel() for parameter in oracle.parameters())


def share_covered(ids: int, pieces: Sequence[Sequence[int]]) -> float:
    """Compute the share of a vocabulary that occurs in some sequences; 1 if it is empty."""
    return len({int(i) for piece in pieces for i in piece}) / ids if ids else 1.0
