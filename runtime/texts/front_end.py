"""The front end of text models: decodes texts or token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import DEFAULT_BATCH_SIZE, GenerationOptions

from ..arguments import StopCheck, never_stopped, planned
from ..backends.interface import Backend
from ..decoding.results import RejectedError, Result, TooManyTokensError, collected
from ..decoding.running_batch import Job, SelectedToken, only_strategy, stream_tokens
from ..decoding.scheduler import Scheduler, source_length
from ..format.manifest import Manifest
from .outputs import PendingText, nothing
from .plan import TextPlan
from .sentences import (
    PendingSentences,
    begun_sentences,
    check_split,
    check_unsplit,
    language_of,
    sentence_spans,
)
from .shortlist import Shortlist
from .tokenizer import EncodedSource, TextCodec, TooLongError, UnknownSymbolsError


class TextFrontEnd:
    """Decodes texts in batches of similar length."""

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        codec: TextCodec | None,
        shortlist: Shortlist | None = None,
    ) -> None:
        self._manifest, self._backend, self._codec = manifest, backend, codec
        self._shortlist = shortlist

    def generate(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck = never_stopped,
    ) -> list[Result]:
        """Decode texts of any number and lengths.

        Args:
            options: the options of all sources; or of each source, where invalid options reject
                only their source
            check: called before each input is read, and before each step

        Raises:
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            StoppedError: `check` stopped the call; holds the finished results.
            UnfinishedError: the device failed permanently; holds the finished results.
        """
        return collected(self._results(sources, options, check), len(sources))

    def begin(
        self,
        source: Any,
        options: GenerationOptions,
        check: StopCheck = never_stopped,
        check_count: Callable[[int], None] | None = None,
    ) -> PendingText | PendingSentences | Result:
        """Tokenize a text and create its jobs; return its result if it is empty or rejected."""
        check()
        return self._begin(source, self._plan(options), check, check_count)

    def stream(
        self, source: Any, options: GenerationOptions, check: StopCheck = never_stopped
    ) -> Iterator[SelectedToken]:
        """Yield the tokens of one output as they are selected."""
        plan = self._plan(options)
        check_unsplit(options)
        found, _ = self.encoded(source, options)
        if not found.tokens:
            return iter(())
        job = Job(0, plan.request(found.tokens), only_strategy(plan.strategies))
        prefix = (SelectedToken(token, 0.0) for token in plan.prefix)
        return chain(prefix, stream_tokens(self._backend, self._manifest.model, job, check))

    def rejected(self, reason: str) -> Result:
        """Return the result of a text that cannot be decoded."""
        return nothing(self.text(()), "rejected", reason)

    def tokenize(
        self,
        source: Any,
        source_language: str | None,
        *,
        split_special_tokens: bool = False,
        truncate: bool = False,
    ) -> list[int]:
        """Return the source token ids of an input; empty for an empty input.

        Raises:
            TooManyTokensError: the input has more tokens than the model or its engines can read.
            RejectedError: symbols or ids are unknown, or the tokenizer is missing or fails.
        """
        try:
            return self._whole(source, source_language, split_special_tokens).tokens
        except TooManyTokensError:
            if not (truncate and self._manifest.model.has_encoder):
                raise
        return self._cut(source, source_language, split_special_tokens).tokens

    def _whole(self, source: Any, source_language: str | None, splits: bool) -> EncodedSource:
        model = self._manifest.model
        positions, longest = model.input_positions, self._longest
        what = "source" if model.has_encoder else "prompt"
        reason = "positions of this model" if longest == positions else "limit of its engines"
        if isinstance(source, str):
            if self._codec is None:
                raise RejectedError("this bundle has no tokenizers: expected token ids")
            try:
                found = self._codec.encode_source(
                    source,
                    source_language,
                    most=longest,
                    split_special_tokens=splits,
                )
            except UnknownSymbolsError as error:
                raise RejectedError(str(error)) from error
            except TooLongError as error:
                raise TooManyTokensError(
                    f"{what} has {error}, expected at most {longest}, the {reason}"
                ) from error
        else:
            found = EncodedSource(token_ids(source, or_text="a text or "))
        if len(found.tokens) > longest:
            raise TooManyTokensError(
                f"{what} has {len(found.tokens)} tokens, expected at most {longest}, the {reason}"
            )
        check_ids(found.tokens, model.input_vocab_size)
        return found

    def text(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str | None:
        """Decode target tokens; None if the bundle has no tokenizers."""
        if self._codec is None:
            return None
        return self._codec.decode(tokens, skip_special_tokens=skip_special_tokens)

    @property
    def _longest(self) -> int:
        model, of_engines = self._manifest.model, self._backend.limits.source
        if not model.has_encoder:
            of_engines = self._manifest.executable.capacity
        return of_engines or model.input_positions

    def encoded(self, source: Any, options: GenerationOptions) -> tuple[EncodedSource, bool]:
        """Return the token ids of an input, and whether it was truncated."""
        language, splits = options.source_language, bool(options.split_special_tokens)
        try:
            return self._whole(source, language, splits), False
        except TooManyTokensError as error:
            if not self._manifest.model.has_encoder:
                raise
            if not options.truncate:
                advice = "truncate=True (--truncate) cuts it"
                raise TooManyTokensError(f"{error}; {advice}") from error
        return self._cut(source, language, splits), True

    def _cut(self, source: Any, language: str | None, splits: bool) -> EncodedSource:
        codec, longest = self._codec, self._longest
        if isinstance(source, str) and codec is not None:
            return codec.encode_beginning(source, language, longest, split_special_tokens=splits)
        tokens, special = token_ids(source), [self._manifest.model.end_token_id]
        if codec is not None:
            special = codec.template_tokens(language)
        last = list(takewhile(special.__contains__, reversed(tokens)))[:longest]
        return self._whole([*tokens[: longest - len(last)], *reversed(last)], language, splits)

    def _plan(self, options: GenerationOptions) -> TextPlan:
        check_split(options, self._manifest)
        return TextPlan.of(options, self._manifest, self._codec, self._shortlist)

    def _begin(
        self,
        source: Any,
        plan: TextPlan | DragomanError,
        check: StopCheck,
        check_count: Callable[[int], None] | None = None,
    ) -> PendingText | PendingSentences | Result:
        try:
            if isinstance(plan, DragomanError):
                raise RejectedError(str(plan))
            if plan.options.split:
                return self._begin_sentences(source, plan, check, check_count)
        except RejectedError as error:
            return self.rejected(str(error))
        return self._begin_whole(source, plan)

    def _begin_sentences(
        self,
        text: Any,
        plan: TextPlan,
        check: StopCheck,
        check_count: Callable[[int], None] | None,
    ) -> PendingSentences | Result:
        if not isinstance(text, str):
            raise RejectedError("split: expected a text, found token ids")

        def fits(part: str) -> bool:
            check()
            try:
                self.tokenize(part, plan.options.source_language, split_special_tokens=splits)
            except RejectedError as error:
                return not isinstance(error, TooManyTokensError)
            return True

        splits = bool(plan.options.split_special_tokens)
        spans = sentence_spans(text, language_of(plan.options, self._manifest), check=check)
        if check_count is not None:
            check_count(len(spans))

        def begin(part: str) -> PendingText | Result:
            check()
            return self._begin_whole(part, plan)

        return begun_sentences(text, plan, spans, begin, fits)

    def _begin_whole(self, source: Any, plan: TextPlan) -> PendingText | Result:
        try:
            found, truncated = self.encoded(source, plan.options)
            if not found.tokens:
                return nothing(self.text(()), "empty")
            return PendingText(found, plan, self._codec, truncated=truncated)
        except RejectedError as error:
            return self.rejected(str(error))

    def _results(
        self,
        sources: Sequence[Any],
        options: GenerationOptions | Sequence[GenerationOptions],
        check: StopCheck,
    ) -> Iterator[tuple[int, Result]]:
        accepted: dict[int, PendingText | PendingSentences] = {}
        plans = planned(options, len(sources), self._plan)
        for index, (source, plan) in enumerate(zip(sources, plans, strict=True)):
            check()
            begun = self._begin(source, plan, check)
            if isinstance(begun, Result):
                yield index, begun
            else:
                accepted[index] = begun
        yield from self._decoded(accepted, check)

    def _decoded(
        self, accepted: dict[int, PendingText | PendingSentences], check: StopCheck
    ) -> Iterator[tuple[int, Result]]:
        if not accepted:
            return
        rows, tokens = self._batch_limits(list(accepted.values()))
        scheduler: Scheduler[tuple[int, int]] = Scheduler(
            self._backend, self._manifest.model, rows=rows, tokens=tokens
        )
        jobs = [(index, job) for index, pending in accepted.items() for job in pending.jobs]
        # Sources of the same width can share batches. With the longest first, a source that does
        # not fit into memory fails immediately.
        for index, job in sorted(jobs, key=lambda each: self._size(each[1]), reverse=True):
            scheduler.add(Job((index, job.key), job.request, job.strategy))
        for outcome in scheduler.run(check):
            index, number = outcome.job.key
            result = accepted[index].add(number, outcome)
            if isinstance(result, Result):
                del accepted[index]
                yield index, result

    def _size(self, job: Job[Any]) -> tuple[int, int]:
        return job.strategy.width, source_length(job, self._manifest.model)

    def _batch_limits(self, accepted: Sequence[PendingText | PendingSentences]) -> tuple[int, int]:
        limits = [pending.plan.limits for pending in accepted]
        sizes = [limit.max_batch_size for limit in limits if limit.max_batch_size is not None]
        tokens = min(limit.max_batch_tokens for limit in limits)
        if sizes:
            rows = min(sizes)
        else:
            longest = max(pending.longest for pending in accepted)
            encoded = longest if self._manifest.model.has_encoder else 1
            capacity = max(job.request.capacity for pending in accepted for job in pending.jobs)
            fitting = self._backend.rows_that_fit(encoded, capacity)
            rows = fitting or DEFAULT_BATCH_SIZE
            tokens = tokens if fitting is None else rows * longest
        return min(rows, self._backend.limits.rows or rows), tokens


def token_ids(
    source: Sequence[int] | NDArray[Any], *, or_text: str = "", vocabulary: int | None = None
) -> list[int]:
    """Return a sequence of token ids as a list.

    Args:
        or_text: alternative to token ids in the error message
        vocabulary: number of tokens; None: unknown

    Raises:
        RejectedError: the source is not a sequence of integers, or an id is out of range.
    """
    try:
        ids = np.asarray(source)
    except ValueError as error:
        raise RejectedError(f"expected {or_text}a list of token ids: {error}") from error
    if ids.size == 0:
        return []
    tokens: list[int] = ids.tolist()
    if ids.ndim != 1 or not all(type(token) is int for token in tokens):
        raise RejectedError(
            f"expected {or_text}a one-dimensional array of integer token ids, found {shown(source)}"
        )
    if vocabulary is not None:
        check_ids(tokens, vocabulary)
    return tokens


def check_ids(tokens: Sequence[int], vocabulary: int) -> None:
    """Raise a `RejectedError` unless token ids are in the vocabulary."""
    unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise RejectedError(f"expected token ids in [0, {vocabulary}), found {shown(unknown)}")
