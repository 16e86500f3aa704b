"""Scoring translations, pronunciations, summaries: texts or token ids on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.interface import Backend
from ..decoding.rejection import RejectedError
from ..format.manifest import Manifest
from ..front_end import FrontEnd
from ..texts.plan import check_languages, start_of
from ..texts.tokenizer import TextCodec
from .batches import score_in_batches
from .options import ScoringOptions
from .results import ScoredPair, rejected
from .targets import Targets, split_pair
from .teacher_forcing import ForcedPair


class TextScorer:
    """See `Model.score`.

    Args:
        front_end: turns sources into tokens
        codec: None for a bundle without tokenizers
    """

    def __init__(
        self, manifest: Manifest, backend: Backend, front_end: FrontEnd, codec: TextCodec | None
    ) -> None:
        self._manifest, self._backend, self._front_end = manifest, backend, front_end
        self._targets = Targets(manifest, codec)

    def score(self, pairs: Sequence[Any], options: ScoringOptions) -> list[ScoredPair]:
        model, prepared = self._manifest.model, self.prepare(pairs, options)
        return score_in_batches(self._backend, model, prepared, options.max_batch_size)

    def prepare(
        self, pairs: Sequence[Any], options: ScoringOptions
    ) -> list[ForcedPair | ScoredPair]:
        """The pairs as the graphs take them; those that cannot be scored are rejected.

        Raises:
            DragomanError, LanguageError: as for `Model.score`.
        """
        given, forced = self._given(options)
        prepared: list[ForcedPair | ScoredPair] = []
        for pair in pairs:
            try:
                source, target = split_pair(pair) if self._has_source(pair) else ("", pair)
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
        tokens = self._front_end.tokenize(source, options.source_language)
        continued: list[int] = []
        if not self._manifest.model.has_encoder:
            continued, tokens = tokens, []
            given = tuple(continued) or given
        elif not tokens:
            raise RejectedError("expected a source, found an empty one")
        if not isinstance(target, str):
            ids = self._targets.ids(target)
            if forced is not None and ids[:1] == [forced]:
                ids = ids[1:]  # it is given, as to the outputs of `generate` that begin with it
            return ForcedPair(tokens, given, self._targets.finished(ids, given, options.end_token))
        encoded = self._targets.encode(target)
        before = [] if continued else _unread(encoded.before, given)
        ids = [*before, *encoded.tokens]
        return ForcedPair(tokens, given, self._targets.finished(ids, given, options.end_token))

    def _has_source(self, pair: Any) -> bool:
        """A decoder alone also scores a text that continues nothing."""
        return self._manifest.model.has_encoder or not isinstance(pair, str)

    def _given(self, options: ScoringOptions) -> tuple[tuple[int, ...], int | None]:
        """What the decoder reads before every target: the start token, the prompt and a forced
        first token, such as the target language's; and that token by itself.

        Raises:
            LanguageError: a language is unknown, missing, or given to a model without languages.
            DragomanError: an option is for speech models.
        """
        check_languages(options, self._manifest)
        start, settings = start_of(self._manifest, options.target_language)
        forced = settings.forced_first_token_id
        return (start, *settings.prompt, *([] if forced is None else [forced])), forced


def _unread(before: Sequence[int], given: Sequence[int]) -> Sequence[int]:
    """The special tokens before a text that the decoder has not read yet. BART's texts begin with
    `<s>`, which some checkpoints force as the first token, and others leave to the model.
    """
    read = next((n for n in range(len(before), 0, -1) if [*given[-n:]] == [*before[:n]]), 0)
    return before[read:]
