"""A loaded bundle: text or tokens in, results out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from .audio import AudioError
from .backends import Backend, open_backend
from .backends.errors import DeviceLostError
from .bundle import Bundle, read_bundle
from .decoding import each_if_not_all, outputs
from .greedy import Choice, greedy
from .manifest import Manifest
from .options import DEFAULT_BATCH_SIZE, GenerationOptions
from .results import FinishReason, Result, Token
from .scheduling import batches, pad
from .speech.facts import SpeechOptions
from .speech.language_names import language_code
from .speech.transcriber import Transcriber
from .tokenizer import TextCodec, UnknownSymbolsError

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or the token ids of one, special tokens included. For a speech model the path of an audio
file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""


class RejectedError(DragomanError):
    """An input that cannot be decoded."""


class Model:
    """A bundle ready to run; made by `load`. Safe to call from several threads."""

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        self._bundle = bundle
        self._backend = backend
        tokenizers = bundle.manifest.tokenizers
        self._codec = (
            TextCodec(bundle.path(tokenizers.source), bundle.path(tokenizers.target))
            if tokenizers
            else None
        )
        self._transcriber = (
            Transcriber(bundle.manifest, backend, self._codec)
            if bundle.manifest.speech is not None
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
            language, task, timestamps: of speech models only, see `speech.facts.SpeechOptions`
            options: further fields of `GenerationOptions`

        Returns:
            results in the order of `sources`. An input that cannot be decoded is a result with
            finish_reason "rejected"; the others are not affected.

        Raises:
            DragomanError: an option is out of range.
            DeviceLostError: the device failed for good; has the results that were finished.
        """
        checked = GenerationOptions.for_model(self.manifest, max_new_tokens, **options)
        asked = self._speech_options(language, task, timestamps)
        if isinstance(sources, str | os.PathLike):
            raise DragomanError("expected a list of inputs, found one: put it in a list")
        if self._transcriber is not None:
            return self._transcriber.generate(sources, checked, asked, max_new_tokens)
        results: dict[int, Result] = {}
        accepted: dict[int, list[int]] = {}
        for index, source in enumerate(sources):
            try:
                accepted[index] = self.tokenize(source)
            except RejectedError as error:
                results[index] = self._result([], 0.0, "rejected", str(error))
        results |= {i: self._result([], 0.0, "empty") for i, t in accepted.items() if not t}
        indices = [i for i, tokens in accepted.items() if tokens]
        lengths = [len(accepted[i]) for i in indices]
        rows, tokens = self._batch_limits(checked, max(lengths, default=1))
        for batch in batches(lengths, max_batch_size=rows, max_batch_tokens=tokens):
            members = [indices[i] for i in batch]
            try:
                decoded = each_if_not_all(
                    lambda batch: self._decode(batch, checked),
                    [accepted[i] for i in members],
                    lambda reason: self._result([], 0.0, "rejected", reason),
                )
            except DeviceLostError as error:
                error.finished = results
                raise
            results.update(zip(members, decoded, strict=True))
        return [results[index] for index in range(len(sources))]

    def stream(
        self,
        source: Source,
        max_new_tokens: int | None = None,
        *,
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
        """
        checked = GenerationOptions.for_model(self.manifest, max_new_tokens, **options)
        asked = self._speech_options(language, task, timestamps)
        if self._transcriber is None:
            tokens = self.tokenize(source)
            return self._tokens(self._choices([tokens], checked)) if tokens else iter(())
        try:
            return self._tokens(self._transcriber.stream(source, checked, asked, max_new_tokens))
        except AudioError as error:
            raise RejectedError(str(error)) from error

    def tokenize(self, source: Source) -> list[int]:
        """The source token ids of an input; none for an empty one.

        Raises:
            RejectedError: it has symbols or ids that the model does not know, is longer than its
                positions, or is a text and the bundle has no tokenizers.
        """
        if self._transcriber is not None:
            raise RejectedError("this is a speech model: its sources are not tokens")
        if isinstance(source, str):
            if self._codec is None:
                raise RejectedError("this bundle has no tokenizers: expected token ids")
            try:
                tokens = self._codec.encode(source)
            except UnknownSymbolsError as error:
                raise RejectedError(str(error)) from error
        else:
            tokens = _token_ids(source)
        positions = self.manifest.model.max_source_positions
        longest = self._backend.limits.source or positions
        if len(tokens) > longest:
            whose = "positions of this model" if longest == positions else "longest of its engines"
            raise RejectedError(
                f"source has {len(tokens)} tokens, expected at most {longest}, the {whose}"
            )
        known = self.manifest.model.source_vocab_size or 0
        unknown = next((token for token in tokens if not 0 <= token < known), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {known}), found {unknown}")
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str | None:
        """The text of target token ids, special tokens left out; None without tokenizers."""
        if self._transcriber is not None:
            return self._transcriber.text(tokens)
        return self._codec.decode(tokens) if self._codec else None

    def _batch_limits(self, options: GenerationOptions, longest: int) -> tuple[int, int]:
        """Rows and source tokens of a batch, whose longest source has so many."""
        rows, tokens = options.max_batch_size, options.max_batch_tokens
        if rows is None:
            fitting = self._backend.rows_that_fit(longest)
            rows = fitting or DEFAULT_BATCH_SIZE
            tokens = tokens if fitting is None else rows * longest
        return min(rows, self._backend.limits.rows or rows), tokens

    def _speech_options(
        self, language: str | None, task: str | None, timestamps: bool
    ) -> SpeechOptions:
        """
        Raises:
            DragomanError: they are given for a model of texts.
        """
        code = None if language is None else language_code(language)
        asked = SpeechOptions(code, task, timestamps)
        if self._transcriber is None and asked != SpeechOptions():
            raise DragomanError("language, task and timestamps are for speech models")
        return asked

    def _decode(self, sources: list[list[int]], options: GenerationOptions) -> list[Result]:
        end = self.manifest.model.end_token_id
        return [
            self._result(output.tokens, output.log_probability, "end" if output.ended else "length")
            for output in outputs(self._choices(sources, options), len(sources), end)
        ]

    def _choices(self, sources: list[list[int]], options: GenerationOptions) -> Iterator[Choice]:
        facts, rules = self.manifest.model, self.manifest.rules
        given = [facts.start_token_id, *rules.prompt]
        return greedy(
            self._backend,
            *pad(sources, facts.pad_token_id),
            np.tile(np.asarray(given, np.int64), (len(sources), 1)),
            [options.limit(len(source)) for source in sources],
            rules.with_minimum(options.min_new_tokens),
            facts.end_token_id,
        )

    def _tokens(self, choices: Iterator[Choice]) -> Iterator[Token]:
        """Of one input, the end token apart, with the text that each adds."""
        text = self._codec.stream() if self._codec else None
        for choice in choices:
            if choice.token != self.manifest.model.end_token_id:
                piece = text.step(choice.token) if text else None
                yield Token(choice.token, piece, choice.log_probability)

    def _result(
        self,
        tokens: Sequence[int],
        log_probability: float,
        reason: FinishReason,
        error: str | None = None,
    ) -> Result:
        return Result(self.detokenize(tokens), tuple(tokens), log_probability, reason, error)


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


def _token_ids(source: Sequence[int] | NDArray[Any]) -> list[int]:
    try:
        ids = np.asarray(source)
    except ValueError as error:
        raise RejectedError(f"expected a text or a list of token ids: {error}") from error
    if ids.size == 0:
        return []
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RejectedError(
            "expected a text or a one-dimensional array of integer token ids, found "
            f"{ids.dtype} of shape {list(ids.shape)}"
        )
    return [int(i) for i in ids]
