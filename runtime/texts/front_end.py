"""The front end of text models: texts or token ids in, results out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from ..backends.errors import DeviceLostError
from ..backends.interface import Backend
from ..decoding.batching import batches, pad
from ..decoding.greedy import Choice, greedy
from ..decoding.options import DEFAULT_BATCH_SIZE, GenerationLimits, GenerationOptions
from ..decoding.outputs import decode_or_split, outputs
from ..decoding.rejection import RejectedError
from ..decoding.results import FinishReason, Result, UnfinishedError
from ..format.languages import LanguageError
from ..format.manifest import Manifest
from .tokenizer import TextCodec, TokenizerError, TooLongError, UnknownSymbolsError


class TextFrontEnd:
    """Decodes any number of texts, those of similar length together. See `front_end.FrontEnd`.

    Args:
        codec: None for a bundle without tokenizers
    """

    def __init__(self, manifest: Manifest, backend: Backend, codec: TextCodec | None) -> None:
        self._manifest, self._backend, self._codec = manifest, backend, codec

    def generate(self, sources: Sequence[Any], options: GenerationOptions) -> list[Result]:
        limits = self._checked(options)
        results: dict[int, Result] = {}
        accepted: dict[int, list[int]] = {}
        for index, source in enumerate(sources):
            try:
                accepted[index] = self.tokenize(source, options.source_language)
            except RejectedError as error:
                results[index] = self._result([], 0.0, "rejected", str(error))
        results |= {i: self._result([], 0.0, "empty") for i, t in accepted.items() if not t}
        indices = [i for i, tokens in accepted.items() if tokens]
        lengths = [len(accepted[i]) for i in indices]
        rows, tokens = self._batch_limits(limits, max(lengths, default=1))
        for batch in batches(lengths, max_batch_size=rows, max_batch_tokens=tokens):
            members = [indices[i] for i in batch]
            try:
                decoded = decode_or_split(
                    lambda batch: self._decode(batch, options, limits),
                    [accepted[i] for i in members],
                    lambda reason: self._result([], 0.0, "rejected", reason),
                )
            except DeviceLostError as error:
                raise UnfinishedError(str(error), results) from error
            results.update(zip(members, decoded, strict=True))
        return [results[index] for index in range(len(sources))]

    def stream(self, source: Any, options: GenerationOptions) -> Iterator[Choice]:
        limits = self._checked(options)
        tokens = self.tokenize(source, options.source_language)
        return self._choices([tokens], options, limits) if tokens else iter(())

    def tokenize(self, source: Any, source_language: str | None) -> list[int]:
        """The source token ids of an input; an empty list for an empty input.

        Raises:
            LanguageError: the language of a text is unknown, or missing although the model needs
                one.
            RejectedError: the input has symbols or ids that the model does not know, has more
                tokens than the model has positions, is a text and the bundle has no tokenizers, or
                makes the tokenizer fail.
        """
        positions = self._manifest.model.max_source_positions
        longest = self._backend.limits.source or positions
        reason = "positions of this model" if longest == positions else "limit of its engines"
        if isinstance(source, str):
            if self._codec is None:
                raise RejectedError("this bundle has no tokenizers: expected token ids")
            try:
                tokens = self._codec.encode(source, source_language, most=longest)
            except UnknownSymbolsError as error:
                raise RejectedError(str(error)) from error
            except TooLongError as error:
                raise RejectedError(
                    f"source has {error}, expected at most {longest}, the {reason}"
                ) from error
        else:
            tokens = token_ids(source, or_text="a text or ")
        if len(tokens) > longest:
            raise RejectedError(
                f"source has {len(tokens)} tokens, expected at most {longest}, the {reason}"
            )
        vocabulary = self._manifest.model.source_vocab_size or 0
        unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {vocabulary}), found {unknown}")
        return tokens

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of target tokens, without special tokens; None without tokenizers."""
        return self._codec.decode(tokens) if self._codec else None

    def _checked(self, options: GenerationOptions) -> GenerationLimits:
        """The options' limits for the model. A wrong language is an error of the call, not of one
        of its inputs."""
        limits = options.limits(self._manifest)
        if options.language is not None or options.task is not None or options.timestamps:
            raise DragomanError(
                "language, task and timestamps are for speech models; a multilingual text model "
                "takes source_language and target_language"
            )
        languages = self._manifest.languages
        for side, code in (
            ("source", options.source_language),
            ("target", options.target_language),
        ):
            if languages is None and code is not None:
                raise LanguageError(
                    f"{side}_language: expected none, this model has no languages, found {code!r}"
                )
        if languages is not None:
            languages.target_token(options.target_language)
            if options.source_language is not None:
                languages.source_token(options.source_language)
        return limits

    def _batch_limits(self, limits: GenerationLimits, longest: int) -> tuple[int, int]:
        """The most rows and source tokens of a batch whose longest source has `longest` tokens."""
        rows, tokens = limits.max_batch_size, limits.max_batch_tokens
        if rows is None:
            rows_that_fit = self._backend.rows_that_fit(longest)
            rows = rows_that_fit or DEFAULT_BATCH_SIZE
            tokens = tokens if rows_that_fit is None else rows * longest
        return min(rows, self._backend.limits.rows or rows), tokens

    def _decode(
        self, sources: list[list[int]], options: GenerationOptions, limits: GenerationLimits
    ) -> list[Result]:
        choices = self._choices(sources, options, limits)
        return [
            self._result(
                output.tokens,
                output.log_probability,
                "length" if output.end_token is None else "end",
                end_token=output.end_token,
            )
            for output in outputs(choices, len(sources), self._manifest.end_tokens)
        ]

    def _choices(
        self, sources: list[list[int]], options: GenerationOptions, limits: GenerationLimits
    ) -> Iterator[Choice]:
        model, settings = self._manifest.model, self._manifest.generation
        start = model.start_token_id
        if self._manifest.languages is not None:
            start, settings = self._manifest.languages.start_of(
                options.target_language, start, settings
            )
        prompt = np.asarray([start, *settings.prompt], np.int64)
        return greedy(
            self._backend,
            *pad(sources, model.pad_token_id),
            np.tile(prompt, (len(sources), 1)),
            [limits.new_tokens(len(source)) for source in sources],
            settings.with_minimum(options.min_new_tokens),
            self._manifest.end_tokens,
        )

    def _result(
        self,
        tokens: Sequence[int],
        log_probability: float,
        reason: FinishReason,
        error: str | None = None,
        end_token: int | None = None,
    ) -> Result:
        try:
            text = self.text(tokens)
        except TokenizerError as failure:
            return Result("", (), 0.0, "rejected", str(failure))
        return Result(text, tuple(tokens), log_probability, reason, error, end_token=end_token)


def token_ids(source: Sequence[int] | NDArray[Any], *, or_text: str = "") -> list[int]:
    """A sequence of token ids as a list.

    Args:
        or_text: what else would have been right, for the error

    Raises:
        RejectedError: it is something else.
    """
    try:
        ids = np.asarray(source)
    except ValueError as error:
        raise RejectedError(f"expected {or_text}a list of token ids: {error}") from error
    if ids.size == 0:
        return []
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RejectedError(
            f"expected {or_text}a one-dimensional array of integer token ids, found "
            f"{ids.dtype} of shape {list(ids.shape)}"
        )
    return [int(i) for i in ids]
