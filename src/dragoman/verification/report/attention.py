"""Shows the attention of a bundle on two inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.pictures.attention import heat_maps
from dragoman.runtime import Attention, Bundle, Model, load
from dragoman.runtime.encoding.front_end import source_of_line
from dragoman.runtime.format.manifest import Manifest
from dragoman.settings.head import Head

from .contents import AttentionExample

Weights = NDArray[np.float32]

EXAMPLES = 2
LONGEST = 40
"""Tokens along a side of a picture, as many as can be read."""
TIMES = 100
"""Columns of a picture of audio."""
CANDIDATES = 200
"""The most inputs that are tried; inputs with more tokens, or that cannot be read, are skipped."""


def attention_examples(
    bundle: Bundle, inputs: Path, *, threads: int | None
) -> tuple[AttentionExample, ...]:
    """Compute the attention on the first inputs of a file that are short enough, two at most.

    Args:
        inputs: a file of texts, one per line, or a directory of audio files

    Raises:
        DragomanError: the file cannot be read, or the graph cannot run.
    """
    examples: list[AttentionExample] = []
    with load(bundle.directory, threads=threads, check="never") as model:
        for text, source in _sources(bundle.manifest, inputs):
            example = _example(model, text, source)
            if example is not None:
                examples.append(example)
            if len(examples) == EXAMPLES:
                break
    return tuple(examples)


def _sources(manifest: Manifest, inputs: Path) -> Sequence[tuple[str, Any]]:
    """List texts to show, and the model's inputs."""
    if manifest.audio is not None:
        from dragoman.verification.inputs.items import recording_items

        return [(item.origin, item.source) for item in recording_items(inputs)]
    lines = _lines(inputs)
    if manifest.head is not None:
        return [(line, _encoder_source(line, manifest.head)) for line in lines]
    return [(source, source) for source, _, _ in (line.partition("\t") for line in lines)]


def _lines(file: Path) -> list[str]:
    """Read the first lines of a file of texts."""
    try:
        with file.open(encoding="utf-8") as texts:
            return [line.rstrip("\n") for line in itertools.islice(texts, CANDIDATES)]
    except (OSError, UnicodeDecodeError) as error:
        raise DragomanError(f"{file}: expected a file of texts, in UTF-8: {error}") from error


def _encoder_source(line: str, head: Head) -> Any:
    try:
        return source_of_line(line, head)
    except DragomanError:
        return line


def _example(model: Model, text: str, source: Any) -> AttentionExample | None:
    """Compute the attention on an input; None if the model cannot read it, or it is too long."""
    try:
        attention = model.attention(source)
    except DragomanError:
        return None
    title, rows, columns, weights = _most_telling(attention)
    if model.manifest.audio is not None:
        columns, weights = _joined(columns, weights)
    elif max(len(rows), len(columns)) > LONGEST:
        return None
    plain = tuple(tuple(float(x) for x in row) for row in np.round(weights.astype(float), 4))
    unit = "s" if model.manifest.audio is not None else ""
    return AttentionExample(title, text, rows, columns, plain, unit)


def _joined(columns: tuple[str, ...], weights: Weights) -> tuple[tuple[str, ...], Weights]:
    """Join neighbouring times, so that at most `TIMES` are left; rows still add up to 1."""
    firsts = np.arange(0, len(columns), -(-len(columns) // TIMES))
    return tuple(columns[first] for first in firsts), np.add.reduceat(weights, firsts, axis=1)


def _most_telling(
    attention: Attention,
) -> tuple[str, tuple[str, ...], tuple[str, ...], Weights]:
    if attention.cross is not None:
        title = "output to source, the heads that align words"
        return title, attention.target, attention.source, attention.aligning
    (chosen, *_) = heat_maps(attention).values()
    title = f"{chosen.title} to itself, mean of all layers and heads"
    return title, chosen.rows, chosen.columns, chosen.chosen(None, None)
