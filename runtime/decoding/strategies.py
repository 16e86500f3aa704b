"""Resolves the options of a call to limits and strategies, with the defaults of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import MOST_SAMPLES, GenerationOptions
from dragoman.settings.generation_settings import GenerationSettings, Part, setting_names

from ..format.manifest import Manifest
from .beam_search import Beam
from .constrained_beam_search import ConstrainedBeam, RequiredPhrases, Tokenizations
from .greedy_and_sampling import Greedy, Sample
from .search import Strategy

OF_SAMPLING = setting_names(Part.SAMPLING, of=GenerationOptions)
OF_BEAMS = setting_names(Part.BEAMS, of=GenerationOptions)
DEFAULT_BATCH_TOKENS = 4096
DEFAULT_WINDOWS = 8
"""Number of audio windows decoded together."""


@dataclass(frozen=True)
class GenerationLimits:
    """The limits of a call, with the defaults of a model filled in; see `GenerationOptions`."""

    max_new_tokens: int
    max_new_tokens_per_source_token: float
    max_batch_size: int | None
    max_batch_tokens: int
    positions: int

    def new_tokens(self, source_length: int) -> int:
        """Return the maximum number of new tokens for a source of this length."""
        # Slightly less, because 1.1 * 10 > 11 in floating point.
        relative = self.max_new_tokens_per_source_token * source_length * (1 - 1e-12)
        return int(min(self.max_new_tokens, math.ceil(relative) if relative < 1e9 else 10**9))

    @classmethod
    def of(cls, options: GenerationOptions, manifest: Manifest) -> GenerationLimits:
        """Return the limits of a call, or raise an error if the model has fewer positions."""
        limit = options.max_new_tokens
        if limit is None:
            limit = manifest.default_max_new_tokens
        longest, limit_name = manifest.model.max_target_positions, "positions of this model"
        if manifest.executable.capacity is not None:
            longest, limit_name = manifest.executable.capacity, "capacity of its engines"
        positions, prompt = longest, len(manifest.generation.prompt)
        if prompt:
            longest, limit_name = longest - prompt, f"{limit_name} less the prompt"
        if limit > longest:
            raise DragomanError(
                f"max_new_tokens: expected at most {longest}, the {limit_name}, found "
                f"{shown(limit)}"
            )
        if (options.min_new_tokens or 0) > limit:
            raise DragomanError(
                f"min_new_tokens: expected at most max_new_tokens {limit}, found "
                f"{shown(options.min_new_tokens)}"
            )
        batch_tokens = options.max_batch_tokens
        if batch_tokens is None:
            windows = DEFAULT_WINDOWS * manifest.model.max_source_positions
            batch_tokens = windows if manifest.model.takes_audio else DEFAULT_BATCH_TOKENS
        relative = float(min(options.max_new_tokens_per_source_token, 1e9))  # no limit at all
        return cls(limit, relative, options.max_batch_size, batch_tokens, positions)


def strategies(
    options: GenerationOptions, manifest: Manifest, required: Sequence[Tokenizations] = ()
) -> Sequence[Strategy]:
    """Return the strategies for an input: one, or one for each sample."""
    settings = manifest.generation
    sampling = options.do_sample
    if sampling is None:
        sampling = settings.do_sample and (options.num_beams or 1) == 1
    beams, coldest = options.num_beams, options.temperature == 0
    if beams is None:
        beams = 1 if sampling or coldest else settings.num_beams
    sampling = sampling and not coldest
    _check(options, manifest, beams, sampling=sampling)
    if sampling:
        return [
            Sample(options.seed, index, **options.with_defaults(settings, OF_SAMPLING))
            for index in range(options.num_return_sequences)
        ]
    if beams == 1:
        return [Greedy()]
    returned = options.num_return_sequences
    beam = Beam(beams, returned=returned, **options.with_defaults(settings, OF_BEAMS))
    if required:
        return [ConstrainedBeam(**vars(beam), required=RequiredPhrases(required))]
    return [beam]


def _check(options: GenerationOptions, manifest: Manifest, beams: int, *, sampling: bool) -> None:
    problems = []
    vocabulary, returned = manifest.model.target_vocab_size, options.num_return_sequences
    if beams > vocabulary:
        problems.append(
            f"num_beams: expected at most {vocabulary}, the vocabulary, found {shown(beams)}"
        )
    if not sampling and returned > beams:
        problems.append(
            f"num_return_sequences: expected at most num_beams {shown(beams)}, found "
            + shown(returned)
            + (": greedy search finds one" if beams == 1 else "")
        )
    if sampling and returned > MOST_SAMPLES:
        problems.append(
            f"num_return_sequences: expected at most {MOST_SAMPLES} samples, found "
            f"{shown(returned)}"
        )
    if options.alternatives > vocabulary:
        problems.append(
            f"alternatives: expected at most {vocabulary}, the vocabulary, found "
            f"{shown(options.alternatives)}"
        )
    for names, used, words in (
        (OF_SAMPLING, sampling or options.temperature == 0, "sampling: set do_sample"),
        (OF_BEAMS, beams > 1, "beam search: set num_beams"),
    ):
        neutral = {name: (None, getattr(GenerationSettings, name, None)) for name in names}
        given = [name for name in names if getattr(options, name) not in neutral[name]]
        if given and not used:
            problems.append(f"{', '.join(given)}: for {words}, or leave it out")
    if options.must_contain and beams == 1:
        problems.append("must_contain: expected num_beams of more than 1: it needs beam search")
    if problems:
        raise DragomanError(problems=problems)
