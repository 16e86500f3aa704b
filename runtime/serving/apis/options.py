"""Fields of a request -> generation options."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...decoding.options import GenerationOptions
from .bodies import BodyError

MOST_SOURCES = 1024
"""Of a request."""
OF_CALLS = ("max_batch_size", "max_batch_tokens")
"""Of the library's calls: a server decides for itself what is decoded together."""
NAMES = frozenset(f.name for f in dataclasses.fields(GenerationOptions)) - set(OF_CALLS)


def generation_options(values: dict[str, Any]) -> GenerationOptions:
    """
    Raises:
        BodyError: a name is no option.
        DragomanError: a value is out of range.
    """
    unknown = sorted(values.keys() - NAMES)
    if unknown:
        raise BodyError(
            f"unknown: {', '.join(unknown):.200}; options are {', '.join(sorted(NAMES))}"
        )
    given = {name: value for name, value in values.items() if value is not None}
    return GenerationOptions(**given)
