"""Scores transcripts of audio of at most one window."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.settings.speech import AudioFeatures, SpeechTokens

from ..arguments import StopCheck, never_stopped
from ..audio import AudioError, LogMel
from ..backends.interface import Backend
from ..decoding.request import as_batch, run_or_split
from ..decoding.results import RejectedError, collected
from ..format.manifest import Manifest
from ..speech.prompts import PromptRequest
from ..speech.recording import read_spectrogram, warn_of_defects
from ..texts.tokenizer import TextCodec
from .interface import ScoredPair, ScoringOptions, rejected
from .teacher_forcing import MAX_WINDOWS, ForcedPair, scored
from .texts import Targets, split_pair

MAX_OPEN = 64
"""Maximum number of recordings whose features are in memory: 64 MB at 80 mel bins."""


@dataclass(frozen=True)
class SpeechPair:
    """A window of audio with its target."""

    window: NDArray[np.float32]
    """Features [mel bins, frames]."""
    target: list[int]
    """Token ids, without an end token that will be appended."""
    language: int | None
    """Language token; None if the prompt has none."""
    frames: int
    """Number of the window's frames that are audio."""


class SpeechScorer:
    """Scores pairs of audio and transcript; see `Model.score`."""

    def __init__(
        self,
        manifest: Manifest,
        speech: SpeechTokens,
        features: AudioFeatures,
        backend: Backend,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._speech, self._log_mel = manifest, speech, LogMel.of(features)
        self._backend, self._targets = backend, Targets(manifest, codec)

    def score(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck = never_stopped
    ) -> list[ScoredPair]:
        """Score pairs, with the features of at most `MAX_OPEN` pairs in memory."""
        return collected(self._scored(pairs, options, check), len(pairs))

    def _scored(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck
    ) -> Iterator[tuple[int, ScoredPair]]:
        model, request = self._manifest.model, self._request(options)
        for first in range(0, len(pairs), MAX_OPEN):
            read = self._read_all(pairs[first : first + MAX_OPEN], request, options, check)
            prepared = [self._prepared(each, request, options.end_token) for each in read]
            found = scored(self._backend, model, prepared, options.max_batch_size, check)
            for index, result in found:
                pair = read[index]
                if isinstance(pair, SpeechPair) and result.error is None:
                    language = self._speech.language_of(pair.language)
                    result = dataclasses.replace(result, language=language)
                yield first + index, result

    def prepare(
        self, pairs: Sequence[Any], options: ScoringOptions
    ) -> list[ForcedPair | ScoredPair]:
        """Prepare pairs as inputs of the graphs, or reject them."""
        request = self._request(options)
        read = self._read_all(pairs, request, options, never_stopped)
        return [self._prepared(each, request, options.end_token) for each in read]

    def read_texts(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck = never_stopped
    ) -> list[tuple[SpeechPair | ScoredPair, ForcedPair | ScoredPair]]:
        """Read pairs, and prepare them without timestamps and end tokens."""
        request = self._request(options).of_texts(self._speech)
        read = self._read_all(pairs, request, options, check)
        return [(pair, self._prepared(pair, request, False)) for pair in read]

    def _read_all(
        self,
        pairs: Sequence[Any],
        request: PromptRequest,
        options: ScoringOptions,
        check: StopCheck,
    ) -> Sequence[SpeechPair | ScoredPair]:
        read = [self._read(pair, request, options, check) for pair in pairs]
        detecting = self._speech.languages and request.language_token(self._speech) is None
        return self._with_languages(read, check) if detecting else read

    def _read(
        self, pair: Any, request: PromptRequest, options: ScoringOptions, check: StopCheck
    ) -> SpeechPair | ScoredPair:
        try:
            source, target = split_pair(pair)
            audio = read_spectrogram(
                source, self._log_mel, strict=options.strict_audio, on_block=lambda _: check()
            )
            warn_of_defects(audio)
            if audio.frames > self._log_mel.frames:
                raise RejectedError(
                    f"expected audio of at most {self._log_mel.chunk_seconds:g} s to score, found "
                    f"{audio.seconds:.2f} s"
                )
            if isinstance(target, str):
                # Whisper's transcripts begin with a space, which users and `run` omit.
                text = target.strip()
                tokens = []
                if text:
                    tokens = self._targets.encode(
                        f" {text}", split_special_tokens=bool(options.split_special_tokens)
                    ).tokens
            else:
                tokens = self._targets.ids(target)
        except (RejectedError, AudioError) as error:
            return rejected(str(error))
        return SpeechPair(
            self._log_mel.segment(audio.features, 0),
            tokens,
            request.language_token(self._speech),
            audio.frames,
        )

    def _prepared(
        self, pair: SpeechPair | ScoredPair, request: PromptRequest, end_token: bool | None
    ) -> ForcedPair | ScoredPair:
        if isinstance(pair, ScoredPair):
            return pair
        language = [] if pair.language is None else [pair.language]
        instructions = request.instructions(self._speech)
        given = (self._manifest.model.start_token_id, *language, *instructions)
        try:
            target = self._targets.finished(pair.target, given, end_token)
        except RejectedError as error:
            return rejected(str(error))
        return ForcedPair(pair.window, given, target)

    def _with_languages(
        self, read: Sequence[SpeechPair | ScoredPair], check: StopCheck
    ) -> list[SpeechPair | ScoredPair]:
        named: list[SpeechPair | ScoredPair] = list(read)
        waiting = [i for i, each in enumerate(read) if isinstance(each, SpeechPair)]
        for first in range(0, len(waiting), MAX_WINDOWS):
            check()
            indices = waiting[first : first + MAX_WINDOWS]
            batch = [each for i in indices if isinstance(each := read[i], SpeechPair)]
            detected = run_or_split(self._detected, batch, rejected)
            for i, each in zip(indices, detected, strict=True):
                named[i] = each
        return named

    def _detected(self, batch: list[SpeechPair]) -> list[SpeechPair | ScoredPair]:
        model = self._manifest.model
        source, mask = as_batch([each.window for each in batch], model)
        start = np.full((len(batch), 1), model.start_token_id, np.int64)
        logits = self._backend.score(source, mask, start)[:, 0]
        languages = np.sort([*self._speech.languages.values()])
        best = languages[logits[:, languages].argmax(axis=1)].tolist()
        return [
            dataclasses.replace(each, language=token)
            for each, token in zip(batch, best, strict=True)
        ]

    def _request(self, options: ScoringOptions) -> PromptRequest:
        if options.source_language is not None or options.target_language is not None:
            raise DragomanError(
                "source_language and target_language are for text models; a speech model takes "
                "language and task"
            )
        if options.truncate:
            raise DragomanError("truncate: for text models; shorten the recording")
        return PromptRequest.of(options, self._speech)
