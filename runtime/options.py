"""How long generation may go on, and how inputs are batched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from dragoman.errors import DragomanError

from .manifest import Manifest

DEFAULT_BATCH_SIZE = 64
DEFAULT_WINDOWS = 8
"""Of audio, decoded together."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of one call of `generate`, checked against the model.

    Attributes:
        max_new_tokens: the most tokens to generate for an input, the end token included
        max_new_tokens_per_source_token: a limit relative to the source: this many for each of its
            tokens, rounded up. The lower of the two limits holds.
        min_new_tokens: the end token is not chosen before that many other tokens
        max_batch_size: the most inputs decoded together; None: as many as a GPU has memory for, or
            on a processor `DEFAULT_BATCH_SIZE`
        max_batch_tokens: the most source tokens decoded together, padding included; of speech the
            source positions of `DEFAULT_WINDOWS` windows unless told otherwise
        target_language: of a multilingual model, as it calls it; None: its default

    Raises:
        DragomanError: an option is out of range; all are listed.
    """

    max_new_tokens: int
    max_new_tokens_per_source_token: float = math.inf
    min_new_tokens: int = 0
    max_batch_size: int | None = DEFAULT_BATCH_SIZE
    max_batch_tokens: int = 4096
    target_language: str | None = None

    @classmethod
    def for_model(
        cls, manifest: Manifest, max_new_tokens: int | None = None, **options: float | str | None
    ) -> GenerationOptions:
        """Options for a model, `max_new_tokens` being the bundle's default where None."""
        if manifest.audio is not None:
            windows = DEFAULT_WINDOWS * manifest.model.max_source_positions
            options = {"max_batch_tokens": windows, **options}
        if max_new_tokens is None:
            max_new_tokens = manifest.default_max_new_tokens
        longest, whose = manifest.model.max_target_positions, "positions of this model"
        if manifest.engines is not None:
            longest, whose = manifest.engines.capacity, "capacity of its engines"
        if manifest.rules.prompt:
            longest, whose = longest - len(manifest.rules.prompt), f"{whose} less the prompt"
        problems = []
        if _is_integer(max_new_tokens) and max_new_tokens > longest:
            problems.append(
                f"max_new_tokens: expected at most {longest}, the {whose}, found {max_new_tokens}"
            )
        try:
            checked = cls(max_new_tokens=max_new_tokens, **options)  # type: ignore[arg-type]
        except DragomanError as error:
            problems.append(str(error))
        if problems:
            raise DragomanError("; ".join(problems))
        return checked

    def __post_init__(self) -> None:
        problems = [
            f"{name}: expected an integer of at least {least}, found {getattr(self, name)}"
            for name, least in (
                ("max_new_tokens", 1),
                ("min_new_tokens", 0),
                ("max_batch_size", 1),
                ("max_batch_tokens", 1),
            )
            if (name, getattr(self, name)) != ("max_batch_size", None)
            and (not _is_integer(getattr(self, name)) or getattr(self, name) < least)
        ]
        relative: object = self.max_new_tokens_per_source_token
        if not isinstance(relative, int | float) or not relative > 0:
            problems.append(
                f"max_new_tokens_per_source_token: expected more than 0, found {relative}"
            )
        shortest, longest = self.min_new_tokens, self.max_new_tokens
        if _is_integer(shortest) and _is_integer(longest) and shortest > longest:
            problems.append(
                f"min_new_tokens: expected at most max_new_tokens {self.max_new_tokens}, found "
                f"{self.min_new_tokens}"
            )
        if problems:
            raise DragomanError("; ".join(problems))

    def limit(self, source_length: int) -> int:
        """The most new tokens for a source of that many tokens."""
        # Less a little: 1.1 * 10 is above 11 in floating point.
        relative = self.max_new_tokens_per_source_token * source_length * (1 - 1e-12)
        return int(min(self.max_new_tokens, math.ceil(relative) if relative < 1e9 else 10**9))


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
