"""A loaded bundle: text, audio or tokens in, results out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError
from dragoman.settings.fields import shown
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from .arguments import check_able, check_count, check_list, options_of, options_of_each
from .attention.alignment import Alignment
from .attention.maps import Attention
from .attention.reader import AttentionReader, EncoderAttentionReader
from .backends.interface import Backend, BackendError, no_attention
from .decoding.results import RejectedError, Result, Token
from .encoding.front_end import EncoderFrontEnd
from .encoding.results import (
    Answer,
    Classification,
    Embedding,
    Filling,
    HiddenStates,
    Tagging,
)
from .format.bundle import Bundle
from .format.manifest import Manifest
from .front_end import FrontEnd
from .scoring.options import ScoringKeywords, ScoringOptions
from .scoring.results import ScoredPair
from .scoring.speech import SpeechScorer
from .scoring.texts import TextScorer
from .speech.transcriber import Transcriber
from .texts.front_end import TextFrontEnd, token_ids
from .texts.outputs import TokenStream
from .texts.tokenizer import TextCodec, TextStream

Source = (
    str | os.PathLike[str] | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
)
"""A text, or its token ids including special tokens. For a speech model, the path of an audio
file, samples [samples] (`audio.Audio`), or features float32 [mel bins, frames]."""


class Model:
    """A bundle ready to run, made by `load`. It may be called from several threads.

    Every model has `bundle`, `manifest`, `tokenize` and `close`. Models with a decoder have
    `generate`, `stream`, `score` and `detokenize`. Encoder-only models have the methods of their
    head: `encode` and `hidden_states`, `classify`, `tag`, `fill` or `answer`. `attention` and
    `align` need a bundle with the attention graph.
    """

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        self._bundle = bundle
        self._backend = backend
        manifest = bundle.manifest
        self._codec = None
        if manifest.head is not None:
            self._encoder = EncoderFrontEnd(manifest, manifest.head, backend, bundle.directory)
            self._encoder_attention = EncoderAttentionReader(backend, self._encoder)
            return
        if manifest.tokenizers is not None:
            self._codec = TextCodec.of(manifest.tokenizers, bundle.directory, manifest.languages)
        self._front_end: FrontEnd
        self._scorer: TextScorer | SpeechScorer
        if manifest.speech is not None and manifest.audio is not None:
            speech, audio = manifest.speech, manifest.audio
            self._front_end = Transcriber(manifest, speech, audio, backend, self._codec)
            self._scorer = SpeechScorer(manifest, speech, audio, backend, self._codec)
        else:
            self._front_end = TextFrontEnd(manifest, backend, self._codec)
            self._scorer = TextScorer(manifest, backend, self._front_end, self._codec)
        self._attention = AttentionReader(
            manifest, backend, self._scorer, self._front_end, self._codec
        )

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
        return self._backend

    @property
    def front_end(self) -> FrontEnd:
        """The front end, which turns inputs into decoding jobs, and their outputs into results.

        Raises:
            AbilityError: the model is encoder-only.
        """
        check_able(self.manifest, "generate")
        return self._front_end

    @property
    def scorer(self) -> TextScorer | SpeechScorer:
        """The scorer of pairs of source and target.

        Raises:
            AbilityError: the model is encoder-only.
        """
        check_able(self.manifest, "score")
        return self._scorer

    @property
    def encoder(self) -> EncoderFrontEnd:
        """The front end of an encoder-only model.

        Raises:
            AbilityError: the model has a decoder.
        """
        if self.manifest.head is None:
            check_able(self.manifest, "encode")
        return self._encoder

    def close(self) -> None:
        """Free the model's memory on its device. A `with` statement does so too."""
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
        """Decode any number of inputs of any lengths, with continuous batching.

        Speech longer than a window is decoded window by window.

        Args:
            sources: texts, or integer token ids with the special tokens the model expects; audio
                for a speech model
            options: see `GenerationOptions`; or a list with the options of each source
            changes: options by name, which override those of `options`

        Returns:
            results in the order of `sources`. An input that cannot be decoded has a result with
            finish_reason "rejected"; other inputs are not affected.

        Raises:
            DragomanError: `sources` is not a list, or an option is out of range or not for this
                kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            UnfinishedError: the device failed permanently; holds the finished results.
            AbilityError: the model is encoder-only.
        """
        check_able(self.manifest, "generate")
        check_list(sources)
        return self._front_end.generate(sources, options_of_each(options, changes, len(sources)))

    def stream(
        self,
        source: Source,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerationKeywords],
    ) -> Iterator[Token]:
        """Decode one input, and yield each token except the end token as soon as it is selected.

        Arguments are as for `generate`. Beam search is not supported, as its tokens are not final
        until the end. Speech has at most one window.

        Raises:
            RejectedError: the input cannot be decoded.
            DragomanError: an option is out of range, or not for this kind of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            AbilityError: the model is encoder-only.
        """
        check_able(self.manifest, "stream")
        return self.token_stream().tokens(
            self._front_end.stream(source, options_of(options, changes))
        )

    def score(
        self,
        pairs: Sequence[tuple[Source, str | Sequence[int] | NDArray[np.integer[Any]]] | str],
        options: ScoringOptions | None = None,
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
            options: see `ScoringOptions`
            changes: options by name, which override those of `options`

        Returns:
            results in the order of `pairs`. A pair that cannot be scored has an `error`; other
            pairs are not affected.

        Raises:
            DragomanError: `pairs` is not a list, or an option is out of range or not for this kind
                of model.
            LanguageError: a language is unknown, missing, or given to a model without languages.
            DeviceLostError: the device failed permanently.
            AbilityError: the model is encoder-only.
        """
        check_able(self.manifest, "score")
        check_list(pairs)
        options = ScoringOptions() if options is None else options
        if not isinstance(options, ScoringOptions):
            raise DragomanError(f"options: expected ScoringOptions, found {shown(options)}")
        return self._scorer.score(pairs, options.replace(**changes))

    def encode(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Compute the embeddings of texts.

        Args:
            texts: texts of any length, or token ids with the special tokens that the model expects
            truncate: whether to drop tokens beyond the model's positions; a warning counts the
                truncated texts

        Returns:
            embeddings [N, D] in the order of `texts`

        Raises:
            RejectedError: a text cannot be read, for example because it is too long.
            AbilityError: the model has another head.
        """
        check_able(self.manifest, "encode")
        check_list(texts)
        embeddings = self._encoder.embeddings(texts, truncate=truncate)
        _check_read(embeddings)
        size = 0 if self.manifest.head is None else self.manifest.head.outputs
        return np.array([e.vector for e in embeddings], np.float32).reshape(len(embeddings), size)

    def hidden_states(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> list[NDArray[np.float32]]:
        """Compute the last hidden state of every token, special tokens included.

        Arguments and errors are as for `encode`.

        Returns:
            float32 [tokens, d_model] for each text
        """
        check_able(self.manifest, "hidden_states")
        check_list(texts)
        states = self._encoder.hidden_states(texts, truncate=truncate)
        _check_read(states)
        return [text.states for text in states]

    def classify(
        self, texts: Sequence[str | tuple[str, str] | Sequence[int]], *, truncate: bool = False
    ) -> list[Classification]:
        """Classify texts, or pairs of texts.

        Args:
            truncate: whether to drop tokens beyond the model's positions; sets `truncated` in the
                result

        Returns:
            results in the order of `texts`. A text that cannot be read has an `error`; other texts
            are not affected.

        Raises:
            AbilityError: the model has another head.
        """
        check_able(self.manifest, "classify")
        check_list(texts)
        return self._encoder.classify(texts, truncate=truncate)

    def tag(self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False) -> list[Tagging]:
        """Label every word of texts, and the entities that the words form; see `classify`."""
        check_able(self.manifest, "tag")
        check_list(texts)
        return self._encoder.tag(texts, truncate=truncate)

    def fill(
        self, texts: Sequence[str | Sequence[int]], *, top: int = 5, truncate: bool = False
    ) -> list[Filling]:
        """Predict the tokens at the masks of texts; see `classify`.

        Args:
            texts: texts with at least one mask, such as `[MASK]`; other special tokens in a text
                are also read as such
            top: number of candidates for each mask
        """
        check_able(self.manifest, "fill")
        check_list(texts)
        check_count("top", top)
        return self._encoder.fill(texts, top=top, truncate=truncate)

    def answer(
        self, pairs: Sequence[tuple[str, str]], *, longest: int = 15, truncate: bool = False
    ) -> list[Answer]:
        """Find the spans of contexts that answer questions; see `classify`.

        Args:
            pairs: pairs of question and context
            longest: maximum number of tokens in an answer
        """
        check_able(self.manifest, "answer")
        check_list(pairs)
        check_count("longest", longest)
        return self._encoder.answer(pairs, longest=longest, truncate=truncate)

    def attention(
        self, source: Any, target: Any = None, **options: Unpack[ScoringKeywords]
    ) -> Attention:
        """Compute the attention weights between the tokens of a source and a target.

        The bundle must have the attention graph: `build --with-attention`.

        Args:
            source: as for `generate`; for an encoder-only model, a text or a pair of texts
            target: as for `score`; None: the output of `generate` with default options, or no
                target for a decoder-only model. An encoder-only model has no target.
            options: languages, as for `score`; none for an encoder-only model

        Raises:
            RejectedError: source or target cannot be read.
            BackendError: the bundle has no attention graph, or the backend does not run it.
            DragomanError, LanguageError: as for `score`; or an encoder-only model was given a
                target or options.
        """
        self.check_attention()
        if self.manifest.head is None:
            return self._attention.attention(source, target, ScoringOptions(**options))
        unusable = [] if target is None else ["target"]
        unusable += [n for n, value in options.items() if value != getattr(ScoringOptions, n)]
        if unusable:
            raise DragomanError(
                f"{', '.join(unusable)}: expected none, {self.manifest.name} is an encoder-only "
                "model and reads a source"
            )
        return self._encoder_attention.attention(source)

    def check_attention(self) -> None:
        """Check that the bundle has the attention graph.

        Raises:
            BackendError: the bundle has no attention graph.
        """
        if "attention" not in self.manifest.graphs:
            raise BackendError(no_attention(self.manifest.name))

    def align(
        self,
        pairs: Sequence[tuple[Source, Sequence[int]]],
        *,
        unknown_replaced: bool = False,
        **options: Unpack[ScoringKeywords],
    ) -> list[Alignment]:
        """Align each word of an output with a word of its source.

        Words are aligned by the attention of the model's alignment heads, or else of its
        penultimate layer.

        Args:
            pairs: sources, and tokens of outputs, as in `Result.tokens`
            unknown_replaced: whether to align the words of the text that `replace_unknown` returns
            options: languages, as for `score`

        Returns:
            results in the order of `pairs`. A pair that cannot be read has an `error`.

        Raises:
            BackendError, DragomanError, LanguageError: as for `attention`.
            AbilityError: the model is not a text-to-text model with encoder and decoder.
        """
        check_able(self.manifest, "align")
        check_list(pairs)
        languages = ScoringOptions(**options)
        return [
            self._attention.alignment(source, tokens, languages, unknown_replaced=unknown_replaced)
            for source, tokens in pairs
        ]

    def replace_unknown(
        self, source: Source, result: Result, **options: Unpack[ScoringKeywords]
    ) -> str | None:
        """Return the text of a result with unknown tokens replaced by source words.

        Each unknown token is replaced by the source word that it attends to most.

        Raises:
            BackendError, DragomanError, LanguageError, AbilityError: as for `align`.
            RejectedError: the source cannot be read.
        """
        check_able(self.manifest, "align")
        replaced = self._attention.with_unknown_replaced(
            source, result.tokens, ScoringOptions(**options)
        )
        return result.text if replaced is None else replaced

    def tokenize(self, source: Source, source_language: str | None = None) -> list[int]:
        """Return the source token ids of a text; an empty list for an empty text.

        Raises:
            LanguageError: the language is unknown, or is required and missing.
            RejectedError: the text has unknown symbols or ids or is too long, the bundle has no
                tokenizers, or the model does not read text.
            DragomanError: `source_language` is not a text.
        """
        code: object = source_language
        if not isinstance(code, str | None):
            raise DragomanError(f"source_language: expected a text, found {shown(code)}")
        if self.manifest.head is not None:
            return self._encoder.tokenize(source).ids
        return self._front_end.tokenize(source, source_language)

    def detokenize(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str | None:
        """Return the text of target token ids, without special tokens; None without tokenizers.

        Raises:
            RejectedError: the tokens are not ids of the model, or its tokenizer fails on them.
        """
        check_able(self.manifest, "detokenize")
        ids = token_ids(tokens)
        vocabulary = self.manifest.model.target_vocab_size
        unknown = next((token for token in ids if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {vocabulary}), found {unknown}")
        return self._front_end.text(ids)

    def token_text(self, token: int) -> str:
        """Return the text of one target token, or its id if the bundle has no tokenizers."""
        return self._codec.decode([token]) if self._codec else str(token)

    def text_stream(self) -> TextStream | None:
        """Return a decoder from streamed target tokens to text; None without tokenizers."""
        return self._codec.stream() if self._codec else None

    def token_stream(self) -> TokenStream:
        """Return a converter from the selected tokens of one output to tokens with text."""
        return TokenStream(self.manifest.end_tokens, self.text_stream())


def _check_read(results: Sequence[Embedding | HiddenStates]) -> None:
    """Check that no text failed, and warn about truncated texts.

    Raises:
        RejectedError: a text could not be read; names the first such text.
    """
    for index, result in enumerate(results):
        if result.error is not None:
            raise RejectedError(f"text {index}: {result.error}")
    truncated = sum(result.truncated for result in results)
    if truncated:
        warnings.warn(f"{truncated} of {len(results)} texts were truncated", stacklevel=3)
