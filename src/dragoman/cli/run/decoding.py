"""Lines in, results out: all of a group together, or each token by token."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..lines import IDS_EXPECTED, Line, token_ids, unreadable
from .alignments import Aligner
from .output import Output

if TYPE_CHECKING:
    from dragoman.runtime import GenerationOptions, Model, Result


def generate(
    model: Model,
    lines: Sequence[Line],
    options: GenerationOptions,
    output: Output,
    aligner: Aligner | None = None,
) -> None:
    """Decode lines and write their results; if the device fails, unfinished lines are rejected."""
    from dragoman.runtime import UnfinishedError

    sources = [_source(model, line) for line in lines]
    good = [source for source in sources if not isinstance(source, _Bad)]
    lost = None
    try:
        results = model.generate(good, options)
    except UnfinishedError as error:
        lost = error
        undone = _rejected(model, "not decoded: the device failed")
        results = [error.finished.get(index, undone) for index in range(len(good))]
    following = iter(results)
    for source in sources:
        if isinstance(source, _Bad):
            output.write(_rejected(model, source.reason))
        elif aligner is None:
            output.write(next(following))
        else:
            result, pairs = aligner.replaced(source, next(following)), None
            if aligner.alignments:
                result, pairs = aligner.aligned(source, result)
            output.write(result, pairs)
    if lost is not None:
        raise lost


def stream(model: Model, lines: Sequence[Line], options: GenerationOptions, output: Output) -> None:
    """Write the tokens of each line as soon as they are chosen."""
    from dragoman.runtime import RejectedError

    for line in lines:
        output.number += 1
        source = _source(model, line)
        try:
            if isinstance(source, _Bad):
                raise RejectedError(source.reason)
            for index, token in enumerate(model.stream(source, options)):
                piece = f"{' ' if index else ''}{token.id}" if token.text is None else token.text
                click.echo(piece, nl=False)
                sys.stdout.flush()
        except RejectedError as error:
            output.reject(str(error))
        click.echo()


@dataclass(frozen=True)
class _Bad:
    """A line that is not a source, and why."""

    reason: str


def _source(model: Model, line: Line) -> str | list[int] | _Bad:
    """The source that a line states: its text or, for a bundle without tokenizers, token ids."""
    if isinstance(line, UnicodeDecodeError):
        return _Bad(unreadable(line))
    if _takes_words(model):
        return line
    ids = token_ids(line)
    return _Bad(IDS_EXPECTED) if ids is None else ids


def _takes_words(model: Model) -> bool:
    return model.manifest.tokenizers is not None or model.manifest.speech is not None


def _rejected(model: Model, reason: str) -> Result:
    from dragoman.runtime import Result

    return Result("" if _takes_words(model) else None, (), 0.0, "rejected", reason)
