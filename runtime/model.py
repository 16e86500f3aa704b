"""A loaded bundle: text or tokens in, results out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from .audio import AudioError
from .backends import Backend, open_backend
from .bundle import Bundle, read_bundle
from .greedy import Choice
from .manifest import Manifest
from .options import GenerationOptions
from .results import Result, Token
from .speech.facts import SpeechOptions
from .speech.transcriber import Transcriber
from .text import RejectedError, TextFrontEnd
from .tokenizer import TextCodec

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or the token ids of one, special tokens included. For a speech model the path of an audio
file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""


class Model:
    """A bundle ready to run; made by `load`. Safe to call from several threads."""

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        self._bundle = bundle
        self._backend = backend
        tokenizers = bundle.manifest.tokenizers
        self._codec = (
            TextCodec.of(tokenizers, bundle.directory, bundle.manifest.languages)
            if tokenizers
            else None
        )
        self._texts = TextFrontEnd(bundle.manifest, backend, self._codec)
        speech, log_mel = bundle.manifest.speech, bundle.manifest.audio
        self._transcriber = (
            Transcriber(bundle.manifest, speech, log_mel, backend, self._codec)
            if speech is not None and log_mel is not None
            else None
        )

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def manifest(self) -> Manifest:
        return self._bundle.manifest

    def close(self) -> None:
        """Free what the model holds on its device. A `with` statement does it too."""
        self._backend.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def backend(self) -> Backend:
        """The graphs by themselves, for checks and measurements."""
        return self._backend

    def generate(
        self,
        sources: Sequence[Source],
        max_new_tokens: int | None = None,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        **options: float | None,
    ) -> list[Result]:
        """Decode any number of inputs of any lengths greedily.

        Speech of more than a window is decoded window by window, windows of several inputs
        together.

        Args:
            sources: texts, or integer token ids with the special tokens the model expects; for a
                speech model audio
            max_new_tokens: the most tokens to generate for each, the end token included, of speech
                for each window; the bundle's default if None
            source_language, target_language: codes as the model calls them, of multilingual
                models only; the bundle's default if None
            language, task, timestamps: of speech models only, see `speech.facts.SpeechOptions`
            options: further fields of `GenerationOptions`

        Returns:
            results in the order of `sources`. An input that cannot be decoded is a result with
            finish_reason "rejected"; the others are not affected.

        Raises:
            DragomanError: an option is out of range.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            DeviceLostError: the device failed for good; has the results that were finished.
        """
        checked = GenerationOptions.for_model(
            self.manifest, max_new_tokens, target_language=target_language, **options
        )
        asked = SpeechOptions.of(language, task, timestamps)
        self._check_kind(asked, source_language, target_language, options)
        if isinstance(sources, str | os.PathLike):
            raise DragomanError("expected a list of inputs, found one: put it in a list")
        if self._transcriber is not None:
            return self._transcriber.generate(sources, checked, asked, max_new_tokens)
        return self._texts.generate(sources, checked, source_language)

    def stream(
        self,
        source: Source,
        max_new_tokens: int | None = None,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        **options: float | None,
    ) -> Iterator[Token]:
        """Decode one input, yielding each token as soon as it is chosen, the end token apart.

        Arguments as for `generate`. Speech: of a window at most.

        Raises:
            RejectedError: the input cannot be decoded.
            DragomanError: an option is out of range.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """
        checked = GenerationOptions.for_model(
            self.manifest, max_new_tokens, target_language=target_language, **options
        )
        asked = SpeechOptions.of(language, task, timestamps)
        self._check_kind(asked, source_language, target_language, options)
        if self._transcriber is None:
            return self._tokens(self._texts.stream(source, checked, source_language))
        try:
            return self._tokens(self._transcriber.stream(source, checked, asked, max_new_tokens))
        except AudioError as error:
            raise RejectedError(str(error)) from error

    def tokenize(self, source: Source, source_language: str | None = None) -> list[int]:
        """The source token ids of a text; none for an empty one.

        Raises:
            LanguageError: the language of a text is unknown, or is needed and not given.
            RejectedError: it has symbols or ids that the model does not know, is longer than its
                positions, or is a text and the bundle has no tokenizers; or the source of the model
                is no text.
        """
        if self._transcriber is not None:
            raise RejectedError("expected a model of texts, found one of speech")
        return self._texts.tokenize(source, source_language)

    def detokenize(self, tokens: Sequence[int]) -> str | None:
        """The text of target token ids, special tokens left out; None without tokenizers."""
        return (self._transcriber or self._texts).text(tokens)

    def _check_kind(
        self,
        asked: SpeechOptions,
        source_language: str | None,
        target_language: str | None,
        options: Mapping[str, object],
    ) -> None:
        """
        Raises:
            DragomanError: what is for speech is given for a model of texts, or the reverse.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """
        if self._transcriber is None:
            if asked != SpeechOptions():
                raise DragomanError(
                    "language, task and timestamps are for speech models; a multilingual model of "
                    "texts takes source_language and target_language"
                )
            self._texts.check_languages(source_language, target_language)
        elif source_language or target_language or "max_new_tokens_per_source_token" in options:
            raise DragomanError(
                "source_language, target_language and max_new_tokens_per_source_token are for "
                "models of texts; a speech model takes language and task"
            )

    def _tokens(self, choices: Iterator[Choice]) -> Iterator[Token]:
        """Of one input, the end token apart, with the text that each adds."""
        text = self._codec.stream() if self._codec else None
        for choice in choices:
            if choice.token != self.manifest.model.end_token_id:
                piece = text.step(choice.token) if text else None
                yield Token(choice.token, piece, choice.log_probability)


def load(directory: str | Path, *, threads: int | None = None, backend: str | None = None) -> Model:
    """Load a bundle.

    Args:
        directory: the bundle
        threads: processor threads to use; all cores if None
        backend: "onnxruntime" (processor), "onnxruntime-cuda", "tensorrt-rtx" or "tensorrt"; if
            None, what fits the bundle: engines run on the package that made them, graphs on the
            processor

    Raises:
        BundleError: the bundle is damaged or of a newer schema; lists everything that is wrong.
        BackendError: the backend's library or device is missing, or cannot run this bundle.
    """
    if threads is not None and threads < 1:
        raise DragomanError(f"threads: expected at least 1, found {threads}")
    bundle = read_bundle(Path(directory))
    return Model(bundle, open_backend(bundle, backend, threads))
