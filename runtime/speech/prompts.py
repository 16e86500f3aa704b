"""Which options of `Model.generate` lead to the prompt that a manifest states."""

from __future__ import annotations

from typing import Any

from ..manifest import Manifest


def options_of_prompt(manifest: Manifest) -> dict[str, Any]:
    """Language and task by name: parity and calibration need the prompt to be a given one. None
    for a model of texts, whose prompt is always that one."""
    if manifest.speech is None:
        return {}
    prompt = manifest.rules.prompt
    options = {
        "language": _of(manifest.speech.languages, prompt),
        "task": _of(manifest.speech.tasks, prompt),
    }
    return {name: value for name, value in options.items() if value is not None}


def _of(tokens: dict[str, int], prompt: tuple[int, ...]) -> str | None:
    return next((name for name, token in tokens.items() if token in prompt), None)
