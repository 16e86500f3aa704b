"""Runs the graph that outputs attention weights, and aligns words with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.settings.generation import GenerationOptions

from ..backends.interface import Backend
from ..decoding.batching import as_batch
from ..decoding.results import RejectedError, Result
from ..encoding.front_end import EncoderFrontEnd
from ..format.contract import Role
from ..format.manifest import Manifest
from ..front_end import FrontEnd
from ..scoring.options import ScoringOptions
from ..scoring.results import ScoredPair
from ..scoring.speech import SpeechScorer
from ..scoring.teacher_forcing import ForcedPair
from ..scoring.texts import TextScorer
from ..texts.codecs.interface import TextStream
from ..texts.tokenizer import TextCodec
from .alignment import Alignment, WordStream, align, attended_word, word_token, words_of
from .maps import Attention


class EncoderAttentionReader:
    """Reads the attention of an encoder-only model."""

    def __init__(self, backend: Backend, encoder: EncoderFrontEnd) -> None:
        self._backend, self._encoder = backend, encoder

    def attention(self, source: Any) -> Attention:
        """Return the attention maps of a source.

        Raises:
            RejectedError: the source cannot be read.
            BackendError: the bundle has no attention graph, or the backend does not run it.
        """
        text = self._encoder.tokenize(source)
        ids = np.array([text.ids])
        outputs = self._backend.attention(
            {
                "source": ids,
                "source_mask": np.ones_like(ids, bool),
                "token_type": np.array([text.types]),
            }
        )
        pieces = tuple(self._encoder.piece(token) for token in text.ids)
        return Attention(pieces, (), (), outputs["encoder_attention"][0], None, None)


class AttentionReader:
    """Reads the attention of a model with a decoder.

    Args:
        front_end: generates missing targets
        codec: tokenizers; None if the bundle has none
    """

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        scorer: TextScorer | SpeechScorer,
        front_end: FrontEnd,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._backend, self._scorer = manifest, backend, scorer
        self._front_end, self._codec = front_end, codec
        self._stand_in: int | None = None

    def attention(self, source: Any, target: Any, options: ScoringOptions) -> Attention:
        """Return the attention maps of a source and a target.

        Args:
            target: a text or token ids; None: the model's own output for the source, or no target
                for a decoder-only model

        Raises:
            RejectedError: source or target cannot be read.
            BackendError: the bundle has no attention graph, or the backend does not run it.
        """
        if target is None and self._manifest.model.has_encoder:
            (result,) = self._front_end.generate([source], generation_of(options))
            target, options = as_target(result, options)
        return self._of_pair(self._pair(source, target, options))

    def alignment(
        self,
        source: Any,
        tokens: Sequence[int],
        options: ScoringOptions,
        *,
        unknown_replaced: bool = False,
    ) -> Alignment:
        """Align the words of a source and an output.

        Args:
            tokens: the output's tokens without the end token
            unknown_replaced: whether unknown tokens were replaced by `with_unknown_replaced`
        """
        try:
            pair, weights = self._aligning(source, tokens, options)
        except RejectedError as error:
            return Alignment(error=str(error))
        source_words, of_source = self._source_words(source, pair)
        stream = self._word_stream() if unknown_replaced else None
        target_words, of_target = self._target_words(pair, stream)
        pairs = align(weights, of_source, of_target)
        return Alignment(tuple(source_words), tuple(target_words), pairs)

    def with_unknown_replaced(
        self, source: Any, tokens: Sequence[int], options: ScoringOptions
    ) -> str | None:
        """Replace each unknown token of an output by the source word that it attends to most.

        Returns:
            the text; None if the output has no unknown tokens
        """
        unknown = None if self._codec is None else self._codec.unknown_target
        stream = self._word_stream()
        if stream is None or unknown not in tokens:
            return None
        pair, weights = self._aligning(source, tokens, options)
        words, of_source = self._source_words(source, pair)
        text = ""
        for token, row in zip(pair.target, weights, strict=True):
            piece = stream.step(token)
            word = attended_word(row, of_source) if token == unknown else None
            if word is not None:
                space = piece[: len(piece) - len(piece.lstrip())]
                piece = f"{space if text else ''}{words[word]}"
            text += piece
        return text

    def _word_stream(self) -> TextStream | None:
        """Decode targets with unknown tokens as words; None if there is no unknown token."""
        codec = self._codec
        if codec is None or codec.unknown_target is None:
            return None
        unknown, vocabulary = codec.unknown_target, self._manifest.model.target_vocab_size
        if self._stand_in is None:
            self._stand_in = word_token(codec.stream, vocabulary, unknown)
        return WordStream(codec.stream(), unknown, self._stand_in)

    def _aligning(
        self, source: Any, tokens: Sequence[int], options: ScoringOptions
    ) -> tuple[ForcedPair, NDArray[np.float32]]:
        """Return an output and its attention to the source [target, S]."""
        pair = self._pair(source, list(tokens), options.replace(end_token=False))
        weights = self._of_pair(pair).aligning
        return pair, weights[len(pair.given) - 1 :]

    def _pair(self, source: Any, target: Any, options: ScoringOptions) -> ForcedPair:
        if target is None:  # a decoder-only model reads the text without a continuation
            read = tuple(self._front_end.tokenize(source, None))
            if not read:
                raise RejectedError("expected a text, found an empty one")
            return ForcedPair([], read, (self._manifest.model.end_token_id,))
        (pair,) = self._scorer.prepare([(source, target)], options)
        if isinstance(pair, ScoredPair):
            raise RejectedError(pair.error or "cannot be read")
        return pair

    def _of_pair(self, pair: ForcedPair) -> Attention:
        model = self._manifest.model
        inputs: dict[Role, NDArray[Any]] = {"token": np.array([pair.read])}
        if model.has_encoder:
            inputs["source"], inputs["source_mask"] = as_batch([pair.source], model)
        outputs = self._backend.attention(inputs)
        target = (*pair.given[1:], *pair.target)
        return Attention(
            self._source_pieces(pair),
            tuple(map(self._piece, pair.read)),
            tuple(map(self._piece, target)),
            _first(outputs.get("encoder_attention")),
            _first(outputs.get("self_attention")),
            _first(outputs.get("cross_attention")),
            self._manifest.generation.heads_that_align,
        )

    def _piece(self, token: int) -> str:
        piece = self._codec.target_piece(token) if self._codec else None
        return str(token) if piece is None else piece

    def _source_pieces(self, pair: ForcedPair) -> tuple[str, ...]:
        audio, model = self._manifest.audio, self._manifest.model
        if audio is not None:
            seconds = audio.chunk_seconds / model.max_source_positions
            return tuple(f"{n * seconds:.2f}" for n in range(model.max_source_positions))
        found = []
        for token in pair.source:
            piece = self._codec.source_piece(int(token)) if self._codec else None
            found.append(str(token) if piece is None else piece)
        return tuple(found)

    def _source_words(self, source: Any, pair: ForcedPair) -> tuple[list[str], list[int | None]]:
        """Return the words of a source; words of a text may be out of vocabulary."""
        ids = [int(token) for token in pair.source]
        if self._codec is None:
            return list(map(str, ids)), list(range(len(ids)))
        if isinstance(source, str):
            return self._codec.source_words(source)
        return words_of(ids, self._codec.source_stream())

    def _target_words(
        self, pair: ForcedPair, stream: TextStream | None
    ) -> tuple[list[str], list[int | None]]:
        """Return the words of a target.

        Args:
            stream: decodes the tokens; None: the default stream for outputs
        """
        if self._codec is None:
            return list(map(str, pair.target)), list(range(len(pair.target)))
        return words_of(pair.target, stream or self._codec.stream())


def _first(weights: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    return None if weights is None else weights[0]


def as_target(result: Result, options: ScoringOptions) -> tuple[list[int], ScoringOptions]:
    """Return an output as a target, and the options for scoring it.

    Raises:
        RejectedError: the source was rejected.
    """
    if result.error is not None:
        raise RejectedError(result.error)
    return list(result.tokens), options.replace(end_token=result.end_token is not None)


def generation_of(options: ScoringOptions) -> GenerationOptions:
    """Return the options for generating a missing target."""
    return GenerationOptions(
        source_language=options.source_language,
        target_language=options.target_language,
        language=options.language,
        task=options.task,
        timestamps=options.timestamps,
    )
