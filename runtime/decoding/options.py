"""What a caller may ask of generation: one dataclass, for texts and speech."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict, Unpack

import numpy as np

from dragoman.errors import DragomanError

from ..format.manifest import Manifest

DEFAULT_BATCH_SIZE = 64
DEFAULT_BATCH_TOKENS = 4096
DEFAULT_WINDOWS = 8
"""Windows of audio decoded together."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of one call of `Model.generate` or `Model.stream`.

    Attributes:
        max_new_tokens: the most tokens to generate for an input, including the end token; for
            speech, for each window. None: the bundle's default.
        max_new_tokens_per_source_token: texts: a limit relative to the source, this many for each
            of its tokens, rounded up. The lower of the two limits holds.
        min_new_tokens: no end token is chosen before this many other tokens; None: the bundle's
            default
        max_batch_size: the most inputs decoded together; None: as many as a GPU has memory for, or
            `DEFAULT_BATCH_SIZE` on a processor
        max_batch_tokens: the most source tokens decoded together, including padding; None:
            `DEFAULT_BATCH_TOKENS`, for speech `DEFAULT_WINDOWS` windows
        source_language, target_language: multilingual text models: codes as the model names
            them; None: the bundle's default
        language: speech: the spoken language, a code or an English name; None: the bundle's
            default, or the language that the model finds most probable
        task: speech: "transcribe", or "translate" to English; None: the bundle's default
        timestamps: speech: whether to generate timestamps; None: the bundle's default. Audio longer
            than a window is decoded with them in any case, since they say where the next window
            begins.

    Raises:
        DragomanError: an option is out of range; lists all.
    """

    max_new_tokens: int | None = None
    max_new_tokens_per_source_token: float = math.inf
    min_new_tokens: int | None = None
    max_batch_size: int | None = DEFAULT_BATCH_SIZE
    max_batch_tokens: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    language: str | None = None
    task: str | None = None
    timestamps: bool | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}: expected an integer of at least {least}, found {shown(value)}"
            for name, least, optional in (
                ("max_new_tokens", 1, True),
                ("min_new_tokens", 0, True),
                ("max_batch_size", 1, True),
                ("max_batch_tokens", 1, True),
            )
            for value in [getattr(self, name)]
            if not (optional and value is None) and (not is_integer(value) or value < least)
        ]
        relative: Any = self.max_new_tokens_per_source_token
        if not _is_number(relative) or not relative > 0:
            problems.append(
                "max_new_tokens_per_source_token: expected a number of more than 0, found "
                f"{shown(relative)}"
            )
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        both = is_integer(shortest) and is_integer(longest)
        if longest is not None and shortest is not None and both and shortest > longest:
            problems.append(
                f"min_new_tokens: expected at most max_new_tokens {longest}, found {shortest}"
            )
        problems += [
            f"{name}: expected a text, found {shown(value)}"
            for name in ("source_language", "target_language", "language", "task")
            for value in [getattr(self, name)]
            if not isinstance(value, str | None)
        ]
        timestamps: object = self.timestamps
        if not isinstance(timestamps, bool | np.bool_ | None):
            problems.append(f"timestamps: expected True, False or None, found {shown(timestamps)}")
        if problems:
            raise DragomanError("; ".join(problems))

    def replace(self, **changes: Unpack[GenerationKeywords]) -> GenerationOptions:
        """The same options with some changed.

        Raises:
            DragomanError: an option is unknown or out of range.
        """
        known = [field.name for field in dataclasses.fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise DragomanError(
                f"unknown option {', '.join(unknown)}: expected some of {', '.join(known)}"
            )
        return dataclasses.replace(self, **changes)

    def limits(self, manifest: Manifest) -> GenerationLimits:
        """The limits resolved for a model.

        Raises:
            DragomanError: the model has fewer positions, or `min_new_tokens` exceeds its default
                `max_new_tokens`.
        """
        limit = self.max_new_tokens
        if limit is None:
            limit = manifest.default_max_new_tokens
        longest, limit_name = manifest.model.max_target_positions, "positions of this model"
        if manifest.executable.capacity is not None:
            longest, limit_name = manifest.executable.capacity, "capacity of its engines"
        prompt = len(manifest.generation.prompt)
        if prompt:
            longest, limit_name = longest - prompt, f"{limit_name} less the prompt"
        if limit > longest:
            raise DragomanError(
                f"max_new_tokens: expected at most {longest}, the {limit_name}, found {limit}"
            )
        if (self.min_new_tokens or 0) > limit:
            raise DragomanError(
                f"min_new_tokens: expected at most max_new_tokens {limit}, found "
                f"{self.min_new_tokens}"
            )
        batch_tokens = self.max_batch_tokens
        if batch_tokens is None:
            windows = DEFAULT_WINDOWS * manifest.model.max_source_positions
            batch_tokens = windows if manifest.model.takes_audio else DEFAULT_BATCH_TOKENS
        relative = float(min(self.max_new_tokens_per_source_token, 1e9))  # no limit at all
        return GenerationLimits(limit, relative, self.max_batch_size, batch_tokens)


@dataclass(frozen=True)
class GenerationLimits:
    """The limits of a call, with the defaults of a model filled in. See `GenerationOptions`."""

    max_new_tokens: int
    max_new_tokens_per_source_token: float
    max_batch_size: int | None
    max_batch_tokens: int

    def new_tokens(self, source_length: int) -> int:
        """The most new tokens for a source of this many tokens."""
        # Slightly less, because 1.1 * 10 exceeds 11 in floating point.
        relative = self.max_new_tokens_per_source_token * source_length * (1 - 1e-12)
        return int(min(self.max_new_tokens, math.ceil(relative) if relative < 1e9 else 10**9))


class GenerationKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions` as keyword arguments."""

    max_new_tokens: int | None
    max_new_tokens_per_source_token: float
    min_new_tokens: int | None
    max_batch_size: int | None
    max_batch_tokens: int | None
    source_language: str | None
    target_language: str | None
    language: str | None
    task: str | None
    timestamps: bool | None


def shown(value: object) -> str:
    """A value in an error message: on one line, and not whole if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
