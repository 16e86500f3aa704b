"""A loaded bundle: text, audio or tokens in, results out."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, cannot_pickle, shown
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from .arguments import (
    CancelEvent,
    Source,
    check_able,
    check_list,
    options_of,
    options_of_each,
    stop_check,
)
from .attention.alignment import Alignment
from .attention.reader import Attention
from .backends.interface import Backend, BackendError, ClosedModelError, no_attention
from .decoding.results import LiveUpdate, Result, SpokenLanguage, Token, TranscriptUpdate
from .encoding.front_end import EncoderFrontEnd
from .encoding.methods import EncoderMethods
from .format.bundle import Bundle
from .format.manifest import Manifest
from .parts import Parts
from .scoring.interface import ScoredPair, ScoringKeywords, ScoringOptions, scoring_options_of
from .speech.journal import Journal
from .speech.live import Chunk, listening
from .speech.plan import transcription_defaults
from .speech.recording import is_features
from .texts.front_end import token_ids
from .texts.outputs import TokenStream
from .texts.tokenizer import TextStream


class Model(EncoderMethods):
    """A bundle ready to run, made by `load`. It may be called from several threads.

    Every model has `bundle`, `manifest`, `tokenize` and `close`. Models with a decoder have
    `generate`, `stream`, `score` and `detokenize`. Encoder-only models have the methods of their
    head: `encode` and `hidden_states`, `classify` (and `classify_zero_shot` or `rerank`, by its
    labels), `tag`, `fill` or `answer`. `attention`, and for texts `align`, need a bundle with the
    attention graph. Other methods raise `AbilityError`; calls of a closed model,
    `ClosedModelError`.

    A call with `timeout`, in seconds, or `cancel`, such as a `threading.Event`, stops before its
    next step or batch with `DeadlineError` or `CancelError`, which hold its finished results.
    """

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        self._bundle = bundle
        self._open: Parts | None = Parts(bundle, backend)

    @property
    def bundle(self) -> Bundle:
        """The bundle that was loaded."""
        return self._bundle

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self._bundle.manifest

    @property
    def backend(self) -> Backend:
        """The backend that runs the graphs."""
        return self._parts().backend

    def close(self) -> None:
        """Free the memory and threads of the model. A `with` statement does so too.

        Calls that are running in other threads finish, or raise a `ClosedModelError`. `bundle` and
        `manifest` remain. A model that is no longer referenced is closed.
        """
        parts, self._open = self._open, None
        if parts is not None:
            parts.backend.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __reduce__ = cannot_pickle

    def _parts(self, method: str | None = None, inputs: object = ()) -> Parts:
        parts = self._open  # read once: another thread may close the model
        if parts is None:
            raise ClosedModelError
        if method is not None:
            check_able(self.manifest, method)
        check_list(inputs)
        return parts

    def _encoder(self, method: str, inputs: object) -> EncoderFrontEnd:
        return self._parts(method, inputs).encoder

    def generate(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> list[Result]:
        """Decode any number of inputs of any lengths, with continuous batching.

        Speech longer than a window is decoded window by window.

        Args:
            sources: texts, or integer token ids with the special tokens the model expects; audio
                for a speech model
            options: see `GenerationOptions`; or a list with the options of each source
            timeout, cancel: see `Model`
            changes: options by name, which override those of `options`

        Returns:
            results in the order of `sources`. An input that cannot be decoded has a result with
            finish_reason "rejected"; other inputs are not affected.

        Raises:
            DragomanError: `sources` is not a list, or an option is out of range or not for this
                kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            DeadlineError, CancelError: the call was stopped; holds the finished results.
            UnfinishedError: the device failed permanently; holds the finished results.
        """
        front_end, check = self._parts("generate", sources).front_end, stop_check(timeout, cancel)
        return front_end.generate(sources, options_of_each(options, changes, len(sources)), check)

    def stream(
        self,
        source: Source,
        options: GenerationOptions | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> Iterator[Token]:
        """Decode one input, and yield each token as soon as it is selected, the end token last.

        Arguments are as for `generate`. Beam search is not supported, as its tokens are not final
        until the end. Speech has at most one window.

        Raises:
            RejectedError: the input cannot be decoded.
            DeadlineError, CancelError: the stream was stopped.
            DragomanError, LanguageError: as for `generate`.
        """
        front_end, resolved = self._parts("stream").front_end, options_of(options, changes)
        output = TokenStream(self.text_stream(skip_special_tokens=resolved.skip_special_tokens))
        tokens = output.tokens(front_end.stream(source, resolved, stop_check(timeout, cancel)))
        return self._while_open(chain(tokens, output.rest()))

    def transcribe(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | None = None,
        *,
        journal: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> Generator[TranscriptUpdate]:
        """Transcribe recordings, and yield the segments of each window as soon as it is decoded.

        Arguments are as for `generate`; what `options` leave open is as in openai-whisper's
        command, see `transcription_defaults`.

        Args:
            journal: file that keeps what is decoded; a call with the same bundle and options goes
                on after it

        Raises:
            JournalError: the file cannot be used; see `Journal`.
            DeadlineError, CancelError, DeviceLostError: the call was stopped.
            DragomanError: as for `generate`.
        """
        parts, given = self._parts("transcribe", sources), options_of(options, changes)
        check, rows = stop_check(timeout, cancel), parts.backend.limits.rows
        chosen = features = transcription_defaults(given, self.manifest, rows)
        if given.vad is None:  # no detector listens to features
            without = given.replace(vad=False, cut_at_silence=False)
            features = transcription_defaults(without, self.manifest, rows)
        each = [features if is_features(source) else chosen for source in sources]

        def updates() -> Generator[TranscriptUpdate]:
            kept = None if journal is None else Journal(Path(journal), self.manifest, chosen)
            with closing(kept) if kept is not None else nullcontext():
                yield from parts.transcriber.transcribe(sources, each, check, kept)

        return updates()

    def listen(
        self,
        chunks: Iterable[Chunk],
        options: GenerationOptions | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> Generator[LiveUpdate]:
        """Transcribe speech while it arrives, and yield words as soon as they are certain.

        Words that were yielded do not change, and do not depend on how samples are cut into chunks.

        Args:
            chunks: samples at the model's rate in chunks of any length: 16-bit little-endian
                bytes, int16 arrays, or floating arrays from -1 to 1
            options: language, task, `vad` (None: if a detector is installed), `initial_prompt`,
                `hotwords`, `word_timestamps`, and how a pass is decoded, by default greedily

        Raises:
            AudioError: a chunk has another type, or numbers that are not finite.
            DeadlineError, CancelError, BackendError: the call was stopped.
            DragomanError: as for `generate`; or an option is for recordings.
        """
        parts, chosen = self._parts("transcribe"), options_of(options, changes)
        if chosen.vad is None:
            usable = transcription_defaults(GenerationOptions(), self.manifest).vad
            chosen = chosen.replace(vad=usable)
        listener = parts.transcriber.listener(chosen, stop_check(timeout, cancel))
        return listening(listener, chunks)

    def detect_language(
        self,
        sources: Sequence[Source],
        *,
        vad: bool | None = None,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
    ) -> list[SpokenLanguage]:
        """Detect the languages that are spoken in the first window of recordings.

        Args:
            vad: whether the window is one of speech; None: if a detector is installed

        Raises:
            DragomanError: the model has one language, or `sources` is not a list.
            DeadlineError, CancelError, UnfinishedError: as for `generate`.
        """
        parts, check = self._parts("transcribe", sources), stop_check(timeout, cancel)
        options = transcription_defaults(GenerationOptions(vad=vad), self.manifest)
        return parts.transcriber.detect_language(sources, vad=bool(options.vad), check=check)

    def _while_open(self, tokens: Iterator[Token]) -> Iterator[Token]:
        for token in tokens:
            self._parts()
            yield token

    def score(
        self,
        pairs: Sequence[tuple[Source, str | Sequence[int] | NDArray[np.integer[Any]]] | str],
        options: ScoringOptions | None = None,
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **changes: Unpack[ScoringKeywords],
    ) -> list[ScoredPair]:
        """Compute the probability that the model gives to each target.

        The start token, a prompt and a forced first token, such as the target language's, are
        read but not scored. Token ids may begin with the forced token. The end token is appended
        and scored, except for decoder-only models, see `ScoringOptions.end_token`.

        Args:
            pairs: sources as for `generate`, each with its target: a text, or token ids without
                start token, such as `Result.tokens`. Speech has at most one window. For a
                decoder-only model, a pair is a text and its continuation, or just a text.
            options, timeout, cancel, changes: as for `generate`, but `ScoringOptions`

        Returns:
            results in the order of `pairs`. A pair that cannot be scored has an `error`; other
            pairs are not affected.

        Raises:
            DragomanError, LanguageError, DeadlineError, CancelError, UnfinishedError: as for
                `generate`.
        """
        scorer, check = self._parts("score", pairs).scorer, stop_check(timeout, cancel)
        return scorer.score(pairs, scoring_options_of(options, changes), check)

    def attention(
        self,
        source: Any,
        target: Any = None,
        *,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **options: Unpack[ScoringKeywords],
    ) -> Attention:
        """Compute attention between the tokens of a source and a target (`--with-attention`).

        Args:
            source: as for `generate`; for an encoder-only model, a text or a pair of texts
            target: as for `score`; None: the output of `generate` with default options; none for
                decoder-only and encoder-only models
            options: as for `score`; for an encoder-only model, `split_special_tokens`

        Raises:
            RejectedError: source or target cannot be read.
            BackendError: the bundle has no attention graph, or the backend does not run it.
            DragomanError, LanguageError: as for `score`.
        """
        self.check_attention()
        reader, check = self._parts().attention, stop_check(timeout, cancel)
        return reader.attention(source, target, ScoringOptions(**options), check)

    def check_attention(self) -> None:
        """Raise a `BackendError` if the bundle has no attention graph."""
        self._parts()
        if "attention" not in self.manifest.graphs:
            raise BackendError(no_attention(self.manifest.name))

    def align(
        self,
        pairs: Sequence[tuple[Source, Sequence[int]]],
        *,
        unknown_replaced: bool = False,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **options: Unpack[ScoringKeywords],
    ) -> list[Alignment]:
        """Align words of outputs with words of their sources, or tokens of speech with frames.

        Alignment heads align them, or else the penultimate layer, for speech the upper half.

        Args:
            pairs: sources, and tokens of outputs, as in `Result.tokens`; or audio of at most one
                window, and a text or its tokens without timestamps
            unknown_replaced: texts: whether to align the words that `replace_unknown` returns
            options: languages and truncation, as for `score`

        Returns:
            results in the order of `pairs`. A pair that cannot be read has an `error`.

        Raises:
            BackendError, DragomanError, LanguageError: as for `attention`.
        """
        parts, check = self._parts("align", pairs), stop_check(timeout, cancel)
        return parts.alignments(pairs, ScoringOptions(**options), check, unknown_replaced)

    def replace_unknown(
        self,
        source: Source,
        result: Result,
        *,
        by: Literal["word", "token"] = "word",
        skip_special_tokens: bool = True,
        timeout: float | None = None,
        cancel: CancelEvent | None = None,
        **options: Unpack[ScoringKeywords],
    ) -> str | None:
        """Return the text of a result with unknown tokens replaced by source words or tokens.

        Args:
            by: "word", the source word that a token attends to most; or "token", the source token
            options: languages and truncation, as for `score`

        Raises:
            BackendError, DragomanError, LanguageError: as for `align`.
            RejectedError: the source cannot be read.
        """
        reader, check = self._parts("replace_unknown").aligner, stop_check(timeout, cancel)
        replaced = reader.with_unknown_replaced(
            source, result.tokens, ScoringOptions(**options), skip_special_tokens, by, check
        )
        return result.text if replaced is None else replaced

    def tokenize(
        self,
        source: Source,
        source_language: str | None = None,
        *,
        split_special_tokens: bool = False,
    ) -> list[int]:
        """Return the source token ids of a text; an empty list for an empty text.

        Args:
            split_special_tokens: whether special tokens in the text are read as plain text

        Raises:
            LanguageError: the language is unknown, or is required and missing.
            RejectedError: the text has unknown symbols or ids or is too long, the bundle has no
                tokenizers, or the model does not read text.
            DragomanError: `source_language` is not a text.
        """
        code: object = source_language
        if not isinstance(code, str | None):
            raise DragomanError(f"source_language: expected a text, found {shown(code)}")
        parts = self._parts()
        if self.manifest.head is not None:
            return parts.encoder.tokenize(source, split_special_tokens=split_special_tokens).ids
        return parts.front_end.tokenize(
            source, source_language, split_special_tokens=split_special_tokens
        )

    def detokenize(
        self,
        tokens: Sequence[int] | NDArray[np.integer[Any]],
        *,
        skip_special_tokens: bool = True,
    ) -> str | None:
        """Return the text of target token ids; None without tokenizers.

        Raises:
            RejectedError: the tokens are not ids of the model, or its tokenizer fails on them.
        """
        front_end = self._parts("detokenize").front_end
        ids = token_ids(tokens, vocabulary=self.manifest.model.target_vocab_size)
        return front_end.text(ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int, *, skip_special_tokens: bool = True) -> str:
        """Return the text of one target token, or its id if the bundle has no tokenizers."""
        codec = self._parts().codec
        if codec is None:
            return str(token)
        return codec.decode([token], skip_special_tokens=skip_special_tokens)

    def text_stream(self, *, skip_special_tokens: bool = True) -> TextStream | None:
        """Return a decoder from streamed target tokens to text; None without tokenizers."""
        codec = self._parts().codec
        return None if codec is None else codec.stream(skip_special_tokens=skip_special_tokens)


def parts_of(model: Model, method: str | None = None) -> Parts:
    """Return the parts of an open model that has a method, for modules that schedule themselves."""
    return model._parts(method)
