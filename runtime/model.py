"""A loaded bundle: text, audio or tokens in, results out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

from .abilities import check_able
from .attention.alignment import Alignment
from .attention.maps import Attention
from .attention.reader import AttentionReader, EncoderAttentionReader
from .backends.errors import BackendError, no_attention
from .backends.interface import Backend
from .decoding.options import GenerationKeywords, GenerationOptions, is_integer, shown
from .decoding.rejection import RejectedError
from .decoding.results import Result, Token
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
from .texts.token_stream import TokenStream
from .texts.tokenizer import TextCodec, TextStream

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
        self._codec = None
        if manifest.head is not None:
            self._encoder = EncoderFrontEnd(manifest, manifest.head, backend, bundle.directory)
            self._encoder_attention = EncoderAttentionReader(backend, self._encoder)
            return
        if manifest.tokenizers is not None:
            self._codec = TextCodec.of(manifest.tokenizers, bundle.directory, manifest.languages)
        self._front_end = _front_end(manifest, backend, self._codec)
        self._scorer = _scorer(manifest, backend, self._codec, self._front_end)
        self._attention = AttentionReader(
            manifest, backend, self._scorer, self._front_end, self._codec
        )

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
        check_able(self.manifest, "score")
        return self._scorer

    @property
    def front_end(self) -> FrontEnd:
        """What turns inputs into jobs of a decoding loop, and their outputs into results, for those
        who have a loop of their own.

        Raises:
            AbilityError: the model is an encoder alone.
        """
        check_able(self.manifest, "generate")
        return self._front_end

    @property
    def encoder(self) -> EncoderFrontEnd:
        """Texts as the graph of an encoder alone takes them, and what it computes, for checks.

        Raises:
            AbilityError: the model decodes.
        """
        if self.manifest.head is None:
            check_able(self.manifest, "encode")
        return self._encoder

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
            AbilityError: the model is an encoder alone.
        """
        check_able(self.manifest, "generate")
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
            AbilityError: the model is an encoder alone.
        """
        check_able(self.manifest, "stream")
        choices = self._front_end.stream(source, _options(options, changes))
        return self.token_stream().tokens(choices)

    def score(
        self,
        pairs: Sequence[tuple[Source, str | Sequence[int] | NDArray[np.integer[Any]]] | str],
        options: ScoringOptions | None = None,
        **changes: Unpack[ScoringKeywords],
    ) -> list[ScoredPair]:
        """The probability that the model gives to targets that are there already.

        Args:
            pairs: sources as for `generate`, of speech at most a window each, and their targets
                (of a decoder alone, what is to be continued and a continuation, or just a text):
                texts, or token ids without start token, such as `Result.tokens`. What decoding is
                given, the start token, a prompt and a forced first token (such as the target
                language's, with which ids may begin), is read and not scored. The end token is
                appended and scored but for a decoder alone, see `ScoringOptions.end_token`.
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
            AbilityError: the model is an encoder alone.
        """
        check_able(self.manifest, "score")
        _check_list(pairs)
        given = ScoringOptions() if options is None else options
        if not isinstance(given, ScoringOptions):
            raise DragomanError(f"options: expected ScoringOptions, found {shown(given)}")
        return self._scorer.score(pairs, given.replace(**changes))

    def encode(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """The vectors of texts, for an encoder that gives some.

        Args:
            texts: of any number and lengths; or token ids with the special tokens that the model
                expects
            truncate: whether to leave out what is beyond the model's positions; a warning says of
                how many texts

        Returns:
            [N, D], in the order of `texts`

        Raises:
            RejectedError: a text cannot be read, such as one that is too long; names the first.
            AbilityError: the model does something else.
        """
        check_able(self.manifest, "encode")
        _check_list(texts)
        found = self._encoder.embeddings(texts, truncate=truncate)
        _check_read(found)
        size = 0 if self.manifest.head is None else self.manifest.head.outputs
        return np.array([e.vector for e in found], np.float32).reshape(len(found), size)

    def hidden_states(
        self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False
    ) -> list[NDArray[np.float32]]:
        """The hidden state of every token, special tokens included: float32 [tokens, d_model] for
        each text. Arguments and errors as for `encode`.
        """
        check_able(self.manifest, "hidden_states")
        _check_list(texts)
        found = self._encoder.hidden_states(texts, truncate=truncate)
        _check_read(found)
        return [text.states for text in found]

    def classify(
        self, texts: Sequence[str | tuple[str, str] | Sequence[int]], *, truncate: bool = False
    ) -> list[Classification]:
        """The labels of texts, or of pairs of texts, for an encoder that classifies.

        Args:
            truncate: whether to leave out what is beyond the model's positions; the result says so

        Returns:
            results in the order of `texts`. A text that cannot be read has an `error`; the others
            are not affected.

        Raises:
            AbilityError: the model does something else.
        """
        check_able(self.manifest, "classify")
        _check_list(texts)
        return self._encoder.classify(texts, truncate=truncate)

    def tag(self, texts: Sequence[str | Sequence[int]], *, truncate: bool = False) -> list[Tagging]:
        """The label of every word, and the entities that they form. As `classify`."""
        check_able(self.manifest, "tag")
        _check_list(texts)
        return self._encoder.tag(texts, truncate=truncate)

    def fill(
        self, texts: Sequence[str | Sequence[int]], *, top: int = 5, truncate: bool = False
    ) -> list[Filling]:
        """What may stand in place of the masks of texts. As `classify`.

        Args:
            texts: each has at least one mask, such as `[MASK]`; other special tokens that they
                contain are read as such, too
            top: how many candidates each mask gets
        """
        check_able(self.manifest, "fill")
        _check_list(texts)
        _check_count("top", top)
        return self._encoder.fill(texts, top=top, truncate=truncate)

    def answer(
        self, pairs: Sequence[tuple[str, str]], *, longest: int = 15, truncate: bool = False
    ) -> list[Answer]:
        """The parts of contexts that answer questions. As `classify`.

        Args:
            pairs: of question and context
            longest: the most tokens of an answer
        """
        check_able(self.manifest, "answer")
        _check_list(pairs)
        _check_count("longest", longest)
        return self._encoder.answer(pairs, longest=longest, truncate=truncate)

    def attention(
        self, source: Any, target: Any = None, **options: Unpack[ScoringKeywords]
    ) -> Attention:
        """How much each token attends to each other one, in one pass over source and target.

        The bundle must have the graph for it: `build --with-attention`.

        Args:
            source: as for `generate`; of an encoder alone, a text or a pair of texts
            target: as for `score`; None: what the model makes of the source with its defaults. A
                decoder alone just reads the source; an encoder alone takes none.
            options: languages, as for `score`; none for an encoder alone

        Raises:
            RejectedError: source or target cannot be read.
            BackendError: the bundle does not have the graph, or the backend does not run it.
            DragomanError, LanguageError: as for `score`; or an encoder alone got a target or
                options.
        """
        self.check_attention()
        if self.manifest.head is None:
            return self._attention.attention(source, target, ScoringOptions(**options))
        given = [n for n, value in options.items() if value != getattr(ScoringOptions, n)]
        if target is not None or given:
            raise DragomanError(
                f"{', '.join(given if target is None else ['target', *given])}: expected none, "
                f"{self.manifest.name} is an encoder alone and reads a source"
            )
        return self._encoder_attention.attention(source)

    def check_attention(self) -> None:
        """
        Raises:
            BackendError: the bundle does not have the graph that shows attention.
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
        """Which word of a source each word of an output comes from, by the attention of the heads
        that the model names for it, or of its last layer but one.

        Args:
            pairs: sources, and tokens of outputs, as in `Result.tokens`
            unknown_replaced: the words of an output are those of the text that `replace_unknown`
                gives
            options: languages, as for `score`

        Returns:
            results in the order of `pairs`. A pair that cannot be read has an `error`.

        Raises:
            BackendError, DragomanError, LanguageError: as for `attention`.
            AbilityError: the model does not read a source of text and write another one.
        """
        check_able(self.manifest, "align")
        _check_list(pairs)
        given = ScoringOptions(**options)
        return [
            self._attention.alignment(source, tokens, given, unknown_replaced=unknown_replaced)
            for source, tokens in pairs
        ]

    def replace_unknown(
        self, source: Source, result: Result, **options: Unpack[ScoringKeywords]
    ) -> str | None:
        """The text of a result with words of the source in place of unknown tokens, each the one
        that the token attends to most; without such tokens, the text as it is.

        Raises:
            as `align`, and RejectedError: the source cannot be read.
        """
        check_able(self.manifest, "align")
        replaced = self._attention.with_unknown_replaced(
            source, result.tokens, ScoringOptions(**options)
        )
        return result.text if replaced is None else replaced

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
        if self.manifest.head is not None:
            return self._encoder.tokenize(source).ids
        return self._front_end.tokenize(source, source_language)

    def detokenize(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str | None:
        """The text of target token ids, without special tokens; None without tokenizers.

        Raises:
            RejectedError: they are not token ids of the model, or its tokenizer fails on them.
        """
        check_able(self.manifest, "detokenize")
        ids = token_ids(tokens)
        vocabulary = self.manifest.model.target_vocab_size
        unknown = next((token for token in ids if not 0 <= token < vocabulary), None)
        if unknown is not None:
            raise RejectedError(f"expected token ids in [0, {vocabulary}), found {unknown}")
        return self._front_end.text(ids)

    def token_text(self, token: int) -> str:
        """A target token on its own, as text; its id without tokenizers."""
        return self._codec.decode([token]) if self._codec else str(token)

    def text_stream(self) -> TextStream | None:
        """Decodes target tokens to text as they come; None without tokenizers."""
        return self._codec.stream() if self._codec else None

    def token_stream(self) -> TokenStream:
        """Gives chosen tokens of one output their texts."""
        return TokenStream(self.manifest.end_tokens, self.text_stream())


def _check_read(found: Sequence[Embedding | HiddenStates]) -> None:
    """Of results that are arrays: refuse what could not be read, and say what was cut.

    Raises:
        RejectedError: a text could not be read; names the first.
    """
    for index, result in enumerate(found):
        if result.error is not None:
            raise RejectedError(f"text {index}: {result.error}")
    cut = sum(result.truncated for result in found)
    if cut:
        warnings.warn(f"{cut} of {len(found)} texts were truncated", stacklevel=3)


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


def _check_count(name: str, value: Any) -> None:
    if not is_integer(value) or value < 1:
        raise DragomanError(f"{name}: expected an integer of at least 1, found {shown(value)}")


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
