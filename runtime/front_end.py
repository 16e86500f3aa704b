"""The interface of front ends; each handles one kind of input: text or speech."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions

from .arguments import StopCheck, never_stopped
from .decoding.results import Result
from .decoding.running_batch import DecodedJob, Job, SelectedToken
from .decoding.scheduler import FailedJob

Plan = TypeVar("Plan")

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or its token ids including special tokens. For a speech model, the path of an audio
file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""


class Pending(Protocol):
    """An input between its decoding jobs and its result.

    It has one job, several at once, or several one after another.
    """

    @property
    def jobs(self) -> Sequence[Job[int]]:
        """The first jobs to decode, numbered from 0."""

    @property
    def prefix(self) -> Sequence[int]:
        """The tokens that the output begins with before anything is decoded."""

    def add(
        self, number: int, outcome: DecodedJob[Any] | FailedJob[Any]
    ) -> Result | Sequence[Job[int]]:
        """Add the outcome of a job. Nothing may be added after the result.

        Returns:
            the result after the last job, or further jobs, if any
        """


class FrontEnd(Protocol):
    """Turns inputs into decoding jobs, decodes them, and turns the outputs into results."""

    def generate(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck = never_stopped,
    ) -> list[Result]:
        """Decode inputs of any number and lengths.

        Args:
            options: the options of all sources; or a list with the options of each source, where
                invalid options reject only their source
            check: called before each input is read, and before each step

        Raises:
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            StoppedError: `check` stopped the call; holds the finished results.
            UnfinishedError: the device failed permanently; holds the finished results.
        """

    def begin(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> Pending | Result:
        """Prepare an input for decoding; return its result if it is empty or rejected.

        Args:
            check: called before the input is read, and before each block of audio

        Raises:
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """

    def stream(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> Iterator[SelectedToken]:
        """Yield the tokens for one input as they are selected.

        Args:
            check: called before each step

        Raises:
            StoppedError: `check` stopped the stream.
            RejectedError: the input cannot be decoded.
            DragomanError, LanguageError: as for `generate`.
        """

    def rejected(self, reason: str) -> Result:
        """Return the result of an input that cannot be decoded."""

    def tokenize(
        self,
        source: Any,
        source_language: str | None,
        *,
        split_special_tokens: bool = False,
        truncate: bool = False,
    ) -> list[int]:
        """Return the source token ids of an input; an empty list for an empty input.

        Args:
            truncate: whether a source of an encoder that is too long is cut

        Raises:
            LanguageError: the language of a text is unknown, or is required and missing.
            RejectedError: the input is not a source of this model.
        """

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Return the text of target tokens; None without tokenizers."""


def planned(
    options: GenerationOptions | Sequence[GenerationOptions],
    count: int,
    plan: Callable[[GenerationOptions], Plan],
) -> Iterator[Plan | DragomanError]:
    """Return the plan of each of `count` sources, or the error of its options.

    Raises:
        DragomanError: all sources share the same options, and these are invalid.
    """
    if isinstance(options, GenerationOptions):
        return repeat(plan(options), count)

    @cache
    def attempt(each: GenerationOptions) -> Plan | DragomanError:
        try:
            return plan(each)
        except DragomanError as error:
            return error

    return map(attempt, options)
