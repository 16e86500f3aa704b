"""Decodes the lines of a block."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from dragoman.errors import DragomanError
from dragoman.source_lines import IDS_EXPECTED, decoded_line, one_line, token_ids, unreadable

from ...abilities import check_able
from ...decoding.options import GenerationOptions
from ...decoding.plain import result_data
from ...decoding.results import Result
from ...format.manifest import Manifest
from ...loading import load
from ...model import Model
from .source import lines_of

Form = Literal["text", "json"]
"""What a line of output is: the best output, or an object with everything, as `dragoman run --json`
has it."""


@dataclass
class Decoded:
    """What became of a block.

    Attributes:
        lines: an output for each line of input
        rejected: why lines could not be decoded, by their index in the block; their outputs are
            empty
    """

    lines: list[str] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)


class Decoder:
    """A model that decodes blocks. It is loaded where it works, by the first method that needs it:
    what is wrong with it is told by a method, as everything that is.
    """

    def __init__(
        self,
        bundle: Path,
        options: GenerationOptions,
        form: Form,
        threads: int,
        backend: str | None,
    ) -> None:
        self._bundle, self._threads, self._backend = bundle, threads, backend
        self._options = options
        self._line: Callable[[Result], str] = _as_json if form == "json" else _as_text

    @cached_property
    def _model(self) -> Model:
        return load(self._bundle, threads=self._threads, backend=self._backend)

    def check(self) -> None:
        """
        Raises:
            DragomanError: the bundle cannot be loaded, or does not know an option.
        """
        self._model.generate([], self._options)

    def decode(self, data: bytes) -> Decoded:
        """
        Raises:
            UnfinishedError: the device failed.
        """
        outcome = Decoded()
        sources = [self._source(line) for line in lines_of(data)]
        good = [source for source in sources if not isinstance(source, DragomanError)]
        results = iter(self._model.generate(good, self._options))
        for index, source in enumerate(sources):
            result = self._rejected(source) if isinstance(source, DragomanError) else next(results)
            if result.error is not None:
                outcome.rejected[index] = result.error
            outcome.lines.append(self._line(result))
        return outcome

    def _source(self, line: bytes) -> str | list[int] | DragomanError:
        """The source that a line states, or why it states none."""
        text = decoded_line(line)
        if isinstance(text, UnicodeDecodeError):
            return DragomanError(unreadable(text))
        if _takes_words(self._model.manifest):
            return text
        ids = token_ids(text)
        return DragomanError(IDS_EXPECTED) if ids is None else ids

    def _rejected(self, reason: DragomanError) -> Result:
        text = "" if _takes_words(self._model.manifest) else None
        return Result(text, (), 0.0, "rejected", str(reason))


def check_form(manifest: Manifest, options: GenerationOptions, form: Form) -> None:
    """
    Raises:
        DragomanError: an output is not one line, or the bundle decodes nothing.
    """
    check_able(manifest, "generate")
    if form == "text":
        if options.num_return_sequences > 1:
            raise DragomanError(
                f"num_return_sequences: expected 1, or JSON, found {options.num_return_sequences}: "
                "there is a line of output for each of input"
            )
        if options.timestamps:
            raise DragomanError(
                "timestamps: expected JSON with them: there is a line of output for each of input"
            )


def _takes_words(manifest: Manifest) -> bool:
    return manifest.tokenizers is not None or manifest.speech is not None


def _as_text(result: Result) -> str:
    line = one_line(result.text, result.tokens)
    # Speech begins with a space: its words are tokens with the space before them.
    return line if result.segments is None else line.strip()


def _as_json(result: Result) -> str:
    return json.dumps(result_data(result), ensure_ascii=False, allow_nan=False)
