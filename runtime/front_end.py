"""What `Model` asks of the part that knows its kind of input: texts or speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from .decoding.options import GenerationOptions
from .decoding.results import Result
from .decoding.streaming import Choice


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
