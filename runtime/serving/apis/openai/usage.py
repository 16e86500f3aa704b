"""OpenAI's protocol: how many tokens a request used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....model import Model


def prompt_tokens(sources: Sequence[Any], model: Model) -> int:
    """How many tokens sources have together."""
    return sum(len(model.tokenize(source)) for source in sources)


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
