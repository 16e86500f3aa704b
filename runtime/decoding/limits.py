"""The limits of a call, resolved for a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dragoman.errors import DragomanError

from ..format.manifest import Manifest
from .options import GenerationOptions

DEFAULT_BATCH_TOKENS = 4096
DEFAULT_WINDOWS = 8
"""Windows of audio decoded together."""


@dataclass(frozen=True)
class GenerationLimits:
    """The limits of a call, with the defaults of a model filled in. See `GenerationOptions`.

    Attributes:
        positions: of a target
    """

    max_new_tokens: int
    max_new_tokens_per_source_token: float
    max_batch_size: int | None
    max_batch_tokens: int
    positions: int

    def new_tokens(self, source_length: int) -> int:
        """The most new tokens for a source of this many tokens."""
        # Slightly less, because 1.1 * 10 exceeds 11 in floating point.
        relative = self.max_new_tokens_per_source_token * source_length * (1 - 1e-12)
        return int(min(self.max_new_tokens, math.ceil(relative) if relative < 1e9 else 10**9))

    @classmethod
    def of(cls, options: GenerationOptions, manifest: Manifest) -> GenerationLimits:
        """The limits that a call's options set.

        Raises:
            DragomanError: the model has fewer positions, or `min_new_tokens` exceeds its default
                `max_new_tokens`.
        """
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
                f"max_new_tokens: expected at most {longest}, the {limit_name}, found {limit}"
            )
        if (options.min_new_tokens or 0) > limit:
            raise DragomanError(
                f"min_new_tokens: expected at most max_new_tokens {limit}, found "
                f"{options.min_new_tokens}"
            )
        batch_tokens = options.max_batch_tokens
        if batch_tokens is None:
            windows = DEFAULT_WINDOWS * manifest.model.max_source_positions
            batch_tokens = windows if manifest.model.takes_audio else DEFAULT_BATCH_TOKENS
        relative = float(min(options.max_new_tokens_per_source_token, 1e9))  # no limit at all
        return cls(limit, relative, options.max_batch_size, batch_tokens, positions)
