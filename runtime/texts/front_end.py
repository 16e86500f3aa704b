"""The front end of text models: decodes texts or token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.settings.generation import DEFAULT_BATCH_SIZE, GenerationOptions

from ..backends.interface import Backend, DeviceLostError
from ..decoding.results import RejectedError, Result, UnfinishedError
from ..decoding.running_batch import Job, SelectedToken, only_strategy, stream_tokens
from ..decoding.scheduler import Scheduler
from ..decoding.strategies import GenerationLimits
from ..format.manifest import Manifest
from ..front_end import planned
from .outputs import PendingText, nothing
from .plan import TextPlan
from .tokenizer import TextCodec, TooLongError, UnknownSymbolsError


class TextFrontEnd:
    """Decodes texts in batches of similar length; see `front_end.FrontEnd`.

    Args:
        codec: tokenizers; None if the bundle has none
    """

    def __init__(self, manifest: Manifest, backend: Backend, codec: TextCodec | None) -> None:
        self._manifest, self._backend, self._codec = manifest, backend, codec

    def generate(
        self, sources: Sequence[Any], options: GenerationOptions | Sequence[GenerationOptions]
    ) -> list[Result]:
        """Decode texts; see `front_end.FrontEnd.generate`."""
        results: dict[int, Result] = {}
        accepted: dict[int, PendingText] = {}
        plans = planned(options, len(sources), self._plan)
        for index, (source, plan) in enumerate(zip(sources, plans, strict=True)):
            begun = self._begin(source, plan)
            if isinstance(begun, PendingText):
                accepted[index] = begun
            else:
                results[index] = begun
        try:
            for index, result in self._decoded(accepted):
                results[index] = result
        except DeviceLostError as error:
            raise UnfinishedError(str(error), results) from error
        return [results[index] for index in range(len(sources))]

    def begin(self, source: Any, options: GenerationOptions) -> PendingText | Result:
        """Tokenize a text and create its jobs; see `front_end.FrontEnd.begin`."""
        return self._begin(source, self._plan(options))

    def stream(self, source: Any, options: GenerationOptions) -> Iterator[SelectedToken]:
        """Yield the tokens of one output as they are selected."""
        plan = self._plan(options)
        tokens = self.tokenize(source, options.source_language)
        if not tokens:
            return iter(())
        job = Job(0, plan.request(tokens), only_strategy(plan.strategies))
        prefix = (SelectedToken(token, 0.0) for token in plan.prefix)
        return chain(prefix, stream_tokens(self._backend, self._manifest.model, job))

    def tokenize(self, source: Any, source_language: str | None) -> list[int]:
        """Return the source token ids of an input; empty for an empty input.

        Raises:
            LanguageError: the language of a text is unknown, or is required and missing.
            RejectedError: the input has unknown symbols or ids or too many tokens, the bundle has
                no tokenizers for a text, or the tokenizer fails.
        """
        model = self._manifest.model
        positions = model.input_positions
        of_engines = self._backend.limits.source
        if not model.has_encoder:
            of_engines = self._manifest.executable.capacity
        longest = of_engines or positions
        what = "source" if model.has_encoder else "prompt"
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
                    f"{what} has {error}, expected at most {longest}, the {reason}"
                ) from error
        else:
            tokens = token_ids(source, or_text="a text or ")
        if len(tokens) > longest:
            raise RejectedError(
                f"{what} has {len(tokens)} tokens, expected at most {longest}, the {reason}"
            )
        vocabulary = model.input_vocab_size
        unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {vocabulary}), found {unknown}")
        return tokens

    def text(self, tokens: Sequence[int]) -> str | None:
        """Decode target tokens without special tokens; None if the bundle has no tokenizers."""
        return self._codec.decode(tokens) if self._codec else None

    def _plan(self, options: GenerationOptions) -> TextPlan:
        return TextPlan.of(options, self._manifest, self._codec)

    def _begin(self, source: Any, plan: TextPlan | DragomanError) -> PendingText | Result:
        try:
            if isinstance(plan, DragomanError):
                raise RejectedError(str(plan))
            tokens = self.tokenize(source, plan.options.source_language)
            if not tokens:
                return nothing(self.text(()), "empty")
            return PendingText(tokens, plan, self._codec)
        except RejectedError as error:
            return nothing(self.text(()), "rejected", str(error))

    def _decoded(self, accepted: dict[int, PendingText]) -> Iterator[tuple[int, Result]]:
        """Yield results in order of completion, with the indices of their sources."""
        if not accepted:
            return
        longest = max(len(pending.source) for pending in accepted.values())
        rows, tokens = self._batch_limits([p.plan.limits for p in accepted.values()], longest)
        scheduler: Scheduler[tuple[int, int]] = Scheduler(
            self._backend, self._manifest.model, rows=rows, tokens=tokens
        )
        for index in _largest_first(accepted):
            for job in accepted[index].jobs:
                scheduler.add(Job((index, job.key), job.request, job.strategy))
        for outcome in scheduler.run():
            index, number = outcome.job.key
            result = accepted[index].add(number, outcome)
            if result is not None:
                del accepted[index]
                yield index, result

    def _batch_limits(self, limits: Sequence[GenerationLimits], longest: int) -> tuple[int, int]:
        """Return the maximum rows and source tokens of a batch with sources up to `longest`."""
        sizes = [limit.max_batch_size for limit in limits if limit.max_batch_size is not None]
        tokens = min(limit.max_batch_tokens for limit in limits)
        if sizes:
            rows = min(sizes)
        else:
            encoded = longest if self._manifest.model.has_encoder else 1
            rows_that_fit = self._backend.rows_that_fit(encoded)
            rows = rows_that_fit or DEFAULT_BATCH_SIZE
            tokens = tokens if rows_that_fit is None else rows * longest
        return min(rows, self._backend.limits.rows or rows), tokens


def _largest_first(accepted: Mapping[int, PendingText]) -> list[int]:
    """Return sources in the order of decoding: by width, longest first.

    Sources of the same width can share batches. With the longest first, a source that does not fit
    into memory fails immediately.
    """

    def size(index: int) -> tuple[int, int]:
        pending = accepted[index]
        return pending.plan.strategies[0].width, len(pending.source)

    return sorted(accepted, key=size, reverse=True)


def token_ids(source: Sequence[int] | NDArray[Any], *, or_text: str = "") -> list[int]:
    """Return a sequence of token ids as a list.

    Args:
        or_text: alternative to token ids in the error message

    Raises:
        RejectedError: the source is not a sequence of integers.
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
