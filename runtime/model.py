"""A loaded bundle: text, audio or tokens in, results out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from .backends import open_backend
from .backends.interface import Backend
from .decoding.options import GenerationKeywords, GenerationOptions, is_integer, shown
from .decoding.rejection import RejectedError
from .decoding.results import Result, Token
from .decoding.streaming import Choice
from .format.bundle import Bundle, read_bundle
from .format.manifest import Manifest
from .front_end import FrontEnd
from .scoring.options import ScoringKeywords, ScoringOptions
from .scoring.results import ScoredPair
from .scoring.speech import SpeechScorer
from .scoring.texts import TextScorer
from .speech.transcriber import Transcriber
from .texts.front_end import TextFrontEnd, token_ids
from .texts.tokenizer import TextCodec

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or the token ids of one, including special tokens. For a speech model the path of an
audio file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""


class Model:
    """A bundle ready to run; made by `load`. Safe to call from several threads."""

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        self._bundle = bundle
        self._backend = backend
        manifest = bundle.manifest
        self._codec = (
            TextCodec.of(manifest.tokenizers, bundle.directory, manifest.languages)
            if manifest.tokenizers
            else None
        )
        self._front_end = _front_end(manifest, backend, self._codec)
        self._scorer = _scorer(manifest, backend, self._codec, self._front_end)

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def manifest(self) -> Manifest:
        return self._bundle.manifest

    @property
    def backend(self) -> Backend:
        """The graphs themselves, for checks and measurements."""
        return self._backend

    @property
    def scorer(self) -> TextScorer | SpeechScorer:
        """Pairs of source and target as the graphs take them, for checks."""
        return self._scorer

    def close(self) -> None:
        """Free what the model holds on its device. A `with` statement does it too."""
        self._backend.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        sources: Sequence[Source],
        options: GenerationOptions | Sequence[GenerationOptions] | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> list[Result]:
        """Decode any number of inputs of any lengths, several together; as outputs end, inputs that
        wait take their places.

        Speech longer than a window is decoded window by window.

        Args:
            sources: texts, or integer token ids with the special tokens the model expects; audio
                for a speech model
            options: see `GenerationOptions`, which describes every option; or a list of them, one
                for each source
            changes: options by name, in place of or in addition to `options`

        Returns:
            results in the order of `sources`. An input that cannot be decoded is a result with
            finish_reason "rejected"; the others are not affected.

        Raises:
            DragomanError: `sources` is not a list, or an option is out of range or not for this
                kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            UnfinishedError: the device failed for good; has the results that were finished.
        """
        _check_list(sources)
        if not isinstance(options, list | tuple):
            return self._front_end.generate(sources, _options(options, changes))
        each = [_options(one, changes) for one in options]
        if len(each) != len(sources):
            raise DragomanError(
                f"options: expected one, or one for each of {len(sources)} sources, found "
                f"{len(each)}"
            )
        return self._front_end.generate(sources, each)

    def stream(
        self,
        source: Source,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> Iterator[Token]:
        """Decode one input, yielding each token but the end token as soon as it is chosen.

        Arguments as for `generate`, but no beams, whose tokens are not final until the end. Speech:
        at most a window.

        Raises:
            RejectedError: the input cannot be decoded.
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
        """
        return self._tokens(self._front_end.stream(source, _options(options, changes)))

    def score(
        self,
        pairs: Sequence[tuple[Source, str | Sequence[int] | NDArray[np.integer[Any]]]],
        options: ScoringOptions | None = None,
        **changes: Unpack[ScoringKeywords],
    ) -> list[ScoredPair]:
        """The probability that the model gives to targets that are there already.

        Args:
            pairs: sources as for `generate`, of speech at most a window each, and their targets:
                texts, or token ids without start token, such as `Result.tokens`. What decoding is
                given, the start token, a prompt and a forced first token (such as the target
                language's, with which ids may begin), is read and not scored. The end token is
                appended and scored, see `ScoringOptions.end_token`.
            options: see `ScoringOptions`
            changes: options by name, in place of or in addition to `options`

        Returns:
            results in the order of `pairs`. A pair that cannot be scored has an `error`; the others
            are not affected.

        Raises:
            DragomanError: `pairs` is not a list, or an option is out of range or not for this kind
                of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            DeviceLostError: the device failed for good.
        """
        _check_list(pairs)
        given = ScoringOptions() if options is None else options
        if not isinstance(given, ScoringOptions):
            raise DragomanError(f"options: expected ScoringOptions, found {shown(given)}")
        return self._scorer.score(pairs, given.replace(**changes))

    def tokenize(self, source: Source, source_language: str | None = None) -> list[int]:
        """The source token ids of a text; none for an empty one.

        Raises:
            LanguageError: the language of a text is unknown, or is needed and missing.
            RejectedError: it has symbols or ids that the model does not know, is longer than its
                positions, or is a text and the bundle has no tokenizers; or the source of the model
                is not text.
            DragomanError: `source_language` is not a text.
        """
        _check_text("source_language", source_language)
        return self._front_end.tokenize(source, source_language)

    def detokenize(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str | None:
        """The text of target token ids, without special tokens; None without tokenizers.

        Raises:
            RejectedError: they are not token ids of the model, or its tokenizer fails on them.
        """
        ids = token_ids(tokens)
        vocabulary = self.manifest.model.target_vocab_size
        unknown = next((token for token in ids if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {vocabulary}), found {unknown}")
        return self._front_end.text(ids)

    def _tokens(self, choices: Iterator[Choice]) -> Iterator[Token]:
        text = self._codec.stream() if self._codec else None
        for choice in choices:
            if choice.token not in self.manifest.end_tokens:
                piece = text.step(choice.token) if text else None
                yield Token(choice.token, piece, choice.log_probability)


def _options(options: object, changes: GenerationKeywords) -> GenerationOptions:
    """The options of a call, checked."""
    given = GenerationOptions() if options is None else options
    if not isinstance(given, GenerationOptions):
        raise DragomanError(f"options: expected GenerationOptions, found {shown(given)}")
    return given.replace(**changes)


def _check_list(sources: object) -> None:
    """Check that inputs are several, in an order; whether each is one, their front end checks."""
    if isinstance(sources, str | bytes | os.PathLike):
        raise DragomanError("expected a list of inputs, found one: put it in a list")
    ordered = hasattr(sources, "__len__") and hasattr(sources, "__getitem__")
    if not ordered or isinstance(sources, Mapping) or getattr(sources, "ndim", 1) == 0:
        raise DragomanError(f"expected a list of inputs, found {shown(sources)}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str | None):
        raise DragomanError(f"{name}: expected a text, found {shown(value)}")


def _front_end(manifest: Manifest, backend: Backend, codec: TextCodec | None) -> FrontEnd:
    if manifest.speech is not None and manifest.audio is not None:
        return Transcriber(manifest, manifest.speech, manifest.audio, backend, codec)
    return TextFrontEnd(manifest, backend, codec)


def _scorer(
    manifest: Manifest, backend: Backend, codec: TextCodec | None, front_end: FrontEnd
) -> TextScorer | SpeechScorer:
    if manifest.speech is not None and manifest.audio is not None:
        return SpeechScorer(manifest, manifest.speech, manifest.audio, backend, codec)
    return TextScorer(manifest, backend, front_end, codec)


def load(directory: str | Path, *, threads: int | None = None, backend: str | None = None) -> Model:
    """Load a bundle.

    Args:
        directory: the bundle
        threads: processor threads to use; all cores if None
        backend: a name in `backends.BACKENDS`: "onnxruntime" (processor), "onnxruntime-cuda",
            "tensorrt-rtx" or "tensorrt"; if None, the first that runs the bundle: engines run on
            the package that built them, graphs on the processor

    Raises:
        BundleError: the bundle is damaged or of a newer schema; lists everything that is wrong.
        BackendError: the backend's library or device is missing, or cannot run this bundle.
        DragomanError: `directory` is not a path, or `threads` not a number of at least 1.
    """
    where: object = directory
    if not isinstance(where, str | os.PathLike):
        raise DragomanError(f"expected the path of a bundle, found {shown(where)}")
    if threads is not None:
        if not is_integer(threads):
            raise DragomanError(f"threads: expected an integer, found {shown(threads)}")
        if threads < 1:
            raise DragomanError(f"threads: expected at least 1, found {threads}")
        threads = int(threads)
    bundle = read_bundle(Path(directory))
    return Model(bundle, open_backend(bundle, backend, threads))
