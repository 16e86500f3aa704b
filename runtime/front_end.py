"""What `Model` asks of the part that knows its kind of input: texts or speech."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol, TypeVar

from dragoman.errors import DragomanError

from .decoding.loop import Decoding, Job
from .decoding.options import GenerationOptions
from .decoding.results import Result
from .decoding.scheduling import Failed
from .decoding.streaming import Choice

Plan = TypeVar("Plan")


class Pending(Protocol):
    """An input on its way to its result: by one job, several at once, or one after another."""

    @property
    def jobs(self) -> Sequence[Job[int]]:
        """Those that can be decoded at first, numbered from 0."""

    @property
    def given(self) -> Sequence[int]:
        """What the output begins with before anything is decoded."""

    def add(self, number: int, outcome: Decoding[Any] | Failed[Any]) -> Result | Job[int] | None:
        """Take what has become of a job: the result, if it was the last; the job that follows it;
        None while others are still decoded. After a result nothing more may be added.
        """


class FrontEnd(Protocol):
    """Turns inputs into sources, decodes them in batches, and turns tokens into results."""

    def generate(
        self, sources: Sequence[Any], options: GenerationOptions | Sequence[GenerationOptions]
    ) -> list[Result]:
        """Decode inputs of any number and lengths.

        Args:
            options: for all sources; or for each its own, of which wrong ones reject their source

        Raises:
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            UnfinishedError: the device failed for good; has the results that were finished.
        """

    def begin(self, source: Any, options: GenerationOptions) -> Pending | Result:
        """An input ready to be decoded, by whoever has a loop for its jobs; the result of one that
        is empty or cannot be decoded.

        Raises:
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """

    def stream(self, source: Any, options: GenerationOptions) -> Iterator[Choice]:
        """The choices for one input, as they are made.

        Raises:
            RejectedError: the input cannot be decoded.
            DragomanError, LanguageError: as for `generate`.
        """

    def tokenize(self, source: Any, source_language: str | None) -> list[int]:
        """The source token ids of an input; none for an empty one.

        Raises:
            LanguageError: the language of a text is unknown, or is needed and missing.
            RejectedError: the input is not a source of this model.
        """

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of target tokens, without special tokens; None without tokenizers."""


def planned(
    options: GenerationOptions | Sequence[GenerationOptions],
    count: int,
    plan: Callable[[GenerationOptions], Plan],
) -> Iterator[Plan | DragomanError]:
    """The plan of each of `count` sources. If all sources have the same options, wrong ones are an
    error of the call; else of the source.

    Raises:
        DragomanError: see `plan`.
    """
    if isinstance(options, GenerationOptions):
        return repeat(plan(options), count)

    def attempt(each: GenerationOptions) -> Plan | DragomanError:
        try:
            return plan(each)
        except DragomanError as error:
            return error

    return map(attempt, options)
