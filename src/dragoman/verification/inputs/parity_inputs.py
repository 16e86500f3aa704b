"""The inputs that a bundle and its oracle are compared on, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.export.model_description import audio_features
from dragoman.optimize.random_inputs import random_sound
from dragoman.reference_model import ReferenceModel
from dragoman.runtime.audio import LogMel
from dragoman.runtime.decoding.batching import EncoderInput
from dragoman.verification.comparison import describe_sources, describe_windows

from .items import References
from .metrics import Decode, Task
from .sources import EncoderLine


@dataclass(frozen=True)
class ParityInputs:
    """The inputs of a comparison.

    Attributes:
        description: for the record
        sources: source token ids, at least one each, or features [mel bins, frames]
        origins: where people find each source, such as "held_out.tsv, line 17"; empty: by number
        texts: the texts of the sources, which the bundle's own tokenizer must turn into them
        lines: the texts or pairs of texts of an encoder-only model, with their tokens
        decode: the checkpoint's tokenizer of outputs; None: its outputs are no texts
        task: metrics and references of outputs, if there are any
        references: sources with references whose probability is compared
        source_language, target_language: of texts, for a multilingual model; None: see
            `sources.assumed_language` and `oracle.oracle_for`
        random: whether the sources are random, and say nothing about quality
        remark: a remark for the record besides the description
    """

    description: str
    sources: Sequence[EncoderInput]
    origins: Sequence[str] = ()
    texts: list[str] | None = None
    decode: Decode | None = None
    task: Task | None = None
    source_language: str | None = None
    target_language: str | None = None
    references: References | None = None
    random: bool = False
    lines: Sequence[EncoderLine] | None = None
    remark: str = ""

    @property
    def recorded(self) -> str:
        """The description in the record of parity."""
        return "; ".join(text for text in (self.description, self.remark) if text)


RANDOM_SOURCES = 64
RANDOM_WINDOWS = 4
"""Windows are half a minute long."""
LONGEST_RANDOM = 48


def random_inputs(
    model: ReferenceModel, count: int = RANDOM_SOURCES, *, seed: int = 0
) -> ParityInputs:
    """Make uniformly random tokens in ragged lengths from 1, or random sound."""
    generator = np.random.default_rng(seed)
    config = model.config
    features = audio_features(config)
    if features is not None:
        log_mel = LogMel.of(features)
        count = min(count, RANDOM_WINDOWS)
        sounds: list[EncoderInput] = [
            log_mel.chunk(random_sound(generator, log_mel.sampling_rate, log_mel.samples))
            for _ in range(count)
        ]
        origins = _numbered("random sound", count)
        return ParityInputs(describe_windows(count, seed), sounds, origins, random=True)
    vocabulary, positions = config.source_vocab_size or 0, config.max_source_positions
    if not config.has_encoder:  # prompts
        vocabulary, positions = config.target_vocab_size, config.max_target_positions // 2
    longest = max(1, min(LONGEST_RANDOM, positions))
    lengths = [1, longest, *generator.integers(1, longest + 1, size=max(0, count - 2))][:count]
    tokens = [generator.integers(0, vocabulary, size=n).tolist() for n in lengths]
    origins = _numbered("random source", count)
    return ParityInputs(describe_sources(count, seed), tokens, origins, random=True)


def _numbered(what: str, count: int) -> list[str]:
    return [f"{what} {number}" for number in range(1, count + 1)]
