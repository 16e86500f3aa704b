"""Scores targets of text models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.errors import shown

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend
from ..decoding.results import RejectedError
from ..format.manifest import Manifest
from ..texts.front_end import TextFrontEnd, check_ids, token_ids
from ..texts.plan import check_languages, check_truncation, start_of
from ..texts.tokenizer import EncodedTarget, TextCodec, TooLongError, UnknownSymbolsError
from .interface import ScoredPair, ScoringOptions, rejected
from .teacher_forcing import ForcedPair, score_in_batches


class TextScorer:
    """Scores pairs of source and target; see `Model.score`."""

    def __init__(
        self, manifest: Manifest, backend: Backend, front_end: TextFrontEnd, codec: TextCodec | None
    ) -> None:
        self._manifest, self._backend, self._front_end = manifest, backend, front_end
        self._targets = Targets(manifest, codec)

    def score(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck = never_stopped
    ) -> list[ScoredPair]:
        """Score pairs in batches."""
        model, prepared = self._manifest.model, self.prepare(pairs, options, check)
        return score_in_batches(self._backend, model, prepared, options.max_batch_size, check)

    def prepare(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck = never_stopped
    ) -> list[ForcedPair | ScoredPair]:
        """Prepare pairs as inputs of the graphs, or reject them."""
        given, forced = self._given(options)
        has_encoder = self._manifest.model.has_encoder
        prepared: list[ForcedPair | ScoredPair] = []
        for pair in pairs:
            check()
            try:
                # Decoder-only models also score single texts.
                is_pair = has_encoder or not isinstance(pair, str)
                source, target = split_pair(pair) if is_pair else ("", pair)
                prepared.append(self._prepared(source, target, given, forced, options))
            except RejectedError as error:
                prepared.append(rejected(str(error)))
        return prepared

    def _prepared(
        self,
        source: Any,
        target: Any,
        given: tuple[int, ...],
        forced: int | None,
        options: ScoringOptions,
    ) -> ForcedPair:
        splits = bool(options.split_special_tokens)
        tokens = self._front_end.tokenize(
            source,
            options.source_language,
            split_special_tokens=splits,
            truncate=options.truncate,
        )
        continued: list[int] = []
        if not self._manifest.model.has_encoder:
            continued, tokens = tokens, []
            given = tuple(continued) or given
        elif not tokens:
            raise RejectedError("expected a source, found an empty one")
        if not isinstance(target, str):
            ids = self._targets.ids(target)
            if forced is not None and ids[:1] == [forced]:
                ids = ids[1:]  # outputs of `generate` also begin with the forced token
            return ForcedPair(tokens, given, self._targets.finished(ids, given, options.end_token))
        encoded = self._targets.encode(target, split_special_tokens=splits)
        before = [] if continued else _unread(encoded.before, given)
        ids = self._targets.ids([*before, *encoded.tokens])
        return ForcedPair(tokens, given, self._targets.finished(ids, given, options.end_token))

    def _given(self, options: ScoringOptions) -> tuple[tuple[int, ...], int | None]:
        """Return the decoder tokens before every target, and the forced first one among them."""
        check_languages(options, self._manifest)
        check_truncation(options.truncate, self._manifest)
        start, settings = start_of(self._manifest, options.target_language)
        forced = settings.forced_first_token_id
        return (start, *settings.prompt, *([] if forced is None else [forced])), forced


def _unread(before: Sequence[int], given: Sequence[int]) -> Sequence[int]:
    """Return special tokens at the beginning of a target that the decoder has not read yet.

    BART's texts begin with `<s>`, which only some checkpoints force as the first token.
    """
    read = next((n for n in range(len(before), 0, -1) if [*given[-n:]] == [*before[:n]]), 0)
    return before[read:]


def split_pair(pair: Any) -> tuple[Any, Any]:
    """Return source and target of a pair, or raise a `RejectedError`."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise RejectedError(f"expected a pair of source and target, found {shown(pair)}")
    return pair[0], pair[1]


class Targets:
    """Converts targets to the tokens to score."""

    def __init__(self, manifest: Manifest, codec: TextCodec | None) -> None:
        self._manifest, self._codec = manifest, codec
        capacity = manifest.executable.capacity
        self._positions = capacity or manifest.model.max_target_positions
        self._limit = "capacity of its engines" if capacity else "positions of this model"

    def encode(self, text: str, *, split_special_tokens: bool = False) -> EncodedTarget:
        """Tokenize a target text, or raise a `RejectedError`."""
        if self._codec is None:
            raise RejectedError("this bundle has no tokenizers: expected token ids as target")
        try:
            return self._codec.encode_target(
                text, most=self._positions, split_special_tokens=split_special_tokens
            )
        except UnknownSymbolsError as error:
            raise RejectedError(f"target: {error}") from error
        except TooLongError as error:
            raise self._too_long(str(error), self._positions) from error

    def ids(self, target: Any) -> list[int]:
        """Validate a target of token ids, or raise a `RejectedError`."""
        tokens = token_ids(target, or_text="a text or ")
        try:
            check_ids(tokens, self._manifest.model.target_vocab_size)
        except RejectedError as error:
            raise RejectedError(f"target: {error}") from error
        return tokens

    def finished(
        self, tokens: Sequence[int], given: Sequence[int], end_token: bool | None
    ) -> tuple[int, ...]:
        """Append the end token if requested and missing.

        Raises:
            RejectedError: there is no token to score, or more than the model has positions.
        """
        ends = self._manifest.end_tokens
        if end_token is None:
            end_token = self._manifest.model.has_encoder
        if end_token and ends and not (tokens and tokens[-1] in ends):
            end = self._manifest.model.end_token_id
            tokens = [*tokens, end if end in ends else ends[0]]
        if not tokens:
            raise RejectedError("target: expected at least one token to score, found none")
        longest = self._positions + 1 - len(given)  # the last token is not read
        if len(tokens) > longest:
            raise self._too_long(f"{len(tokens)} tokens", longest)
        return tuple(tokens)

    def _too_long(self, found: str, longest: int) -> RejectedError:
        return RejectedError(
            f"target has {found}, expected at most {longest}, by the {self._limit}"
        )
