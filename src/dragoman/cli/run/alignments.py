"""Word alignments of outputs, and source words in place of unknown tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dragoman.runtime import GenerationOptions, Model, Result

Pairs = tuple[tuple[int, int], ...]
"""Of a source word and a target word."""


def check_alone(asked: dict[str, Any], *, stream: bool, alignments: bool, replace: bool) -> None:
    """Check that nothing is asked for beside them that they cannot be had with."""
    for name, given in (("--alignments", alignments), ("--replace-unknown", replace)):
        if given and (stream or asked["num_return_sequences"] > 1 or asked["timestamps"]):
            raise click.UsageError(
                f"{name}: expected without --stream, --n-best and --timestamps: it is of one output"
            )


class Aligner:
    """Adds to results what their attention says.

    Args:
        options: of decoding, for the languages
    """

    def __init__(
        self, model: Model, options: GenerationOptions, *, alignments: bool, replace: bool
    ) -> None:
        self._model, self.alignments, self._replace = model, alignments, replace
        self._languages: dict[str, Any] = {
            "source_language": options.source_language,
            "target_language": options.target_language,
        }

    def check(self) -> None:
        """Find out before the first line arrives whether the bundle can do it.

        Raises:
            DragomanError: it cannot.
        """
        self._model.align([], **self._languages)
        self._model.check_attention()

    def replaced(self, source: Any, result: Result) -> Result:
        """A result with source words in place of unknown tokens, if that is asked for; with an
        error if that is not possible.
        """
        from dragoman import DragomanError

        if not self._replace or result.error is not None or not result.hypotheses:
            return result
        try:
            text = self._model.replace_unknown(source, result, **self._languages)
        except DragomanError as error:
            return dataclasses.replace(result, error=f"--replace-unknown: {error}")
        first, *others = result.hypotheses
        hypotheses = (dataclasses.replace(first, text=text), *others)
        return dataclasses.replace(result, text=text, hypotheses=hypotheses)

    def aligned(self, source: Any, result: Result) -> tuple[Result, Pairs]:
        """The result, with an error if its words cannot be aligned; and which are."""
        from dragoman import DragomanError

        if result.error is not None or not result.tokens:
            return result, ()
        try:
            (found,) = self._model.align(
                [(source, result.tokens)], unknown_replaced=self._replace, **self._languages
            )
            reason = found.error
        except DragomanError as error:
            return dataclasses.replace(result, error=f"--alignments: {error}"), ()
        if reason is not None:
            result = dataclasses.replace(result, error=f"--alignments: {reason}")
        return result, found.pairs


def with_pairs(lines: Iterable[str], pairs: Pairs) -> Iterator[str]:
    """Lines followed by a tab and an alignment in Pharaoh's format. An empty one stays empty."""
    aligned = " ".join(f"{source}-{target}" for source, target in pairs)
    for line in lines:
        yield f"{line}\t{aligned}" if line else ""
