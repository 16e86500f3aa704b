"""Reads attention weights, and aligns words with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions

from ..arguments import StopCheck, never_stopped
from ..backends.interface import Backend
from ..decoding.request import as_batch
from ..decoding.results import RejectedError, Result
from ..encoding.front_end import EncoderFrontEnd
from ..format.contract import Role
from ..format.manifest import Manifest
from ..scoring.interface import ScoredPair, ScoringOptions
from ..scoring.speech import SpeechScorer
from ..scoring.teacher_forcing import ForcedPair
from ..scoring.texts import TextScorer, split_pair
from ..speech.transcriber import Transcriber
from ..texts.codecs.interface import TextStream
from ..texts.front_end import TextFrontEnd, token_ids
from ..texts.tokenizer import TextCodec
from .alignment import (
    NO_WORDS,
    Alignment,
    WordStream,
    align,
    aligned_in_turn,
    attended_word,
    spelled,
    word_token,
    words_of,
)

Weights = NDArray[np.float32]

OF_GENERATION = (
    *("source_language", "target_language", "language", "task", "timestamps"),
    *("split_special_tokens", "strict_audio", "truncate"),
)
"""The options that scoring and generation share."""


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention weights of all layers and heads; each row sums to 1."""

    source: tuple[str, ...]
    """Source tokens as the vocabulary spells them; for audio, times in seconds."""
    read: tuple[str, ...]
    """Decoder inputs: start token, prompt and target without its last token; for a decoder-only
    model, the text."""
    target: tuple[str, ...]
    """The token after each decoder input; the end token after a text without a target."""
    encoder: Weights | None
    """Encoder self-attention [layers, heads, S, S]; None without an encoder."""
    decoder: Weights | None
    """Decoder self-attention [layers, heads, T, T]; None without a decoder."""
    cross: Weights | None
    """Cross-attention [layers, heads, T, S]; None unless there are encoder and decoder."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) pairs whose cross-attention aligns words."""

    @property
    def aligning(self) -> Weights:
        """Mean cross-attention of the alignment heads, [T, S].

        Without alignment heads, those of the penultimate layer are used, which align best according
        to Garg et al. 2019 (section 3.2).

        Raises:
            ValueError: there is no cross-attention.
        """
        if self.cross is None:
            raise ValueError("expected cross-attention, found none")
        if self.alignment_heads:
            chosen = [self.cross[layer, head] for layer, head in self.alignment_heads]
            return np.asarray(np.mean(chosen, axis=0))
        return np.asarray(self.cross[max(0, len(self.cross) - 2)].mean(axis=0))


class EncoderAttentionReader:
    """Reads the attention of an encoder-only model."""

    def __init__(self, name: str, backend: Backend, encoder: EncoderFrontEnd) -> None:
        self._name, self._backend, self._encoder = name, backend, encoder

    def attention(
        self, source: Any, target: None, options: ScoringOptions, check: StopCheck
    ) -> Attention:
        """Return the attention maps of a source.

        Args:
            options: only `split_special_tokens` applies
        """
        splits = bool(options.split_special_tokens)
        others = dataclasses.asdict(options.replace(split_special_tokens=None))
        unusable = [] if target is None else ["target"]
        unusable += [n for n, value in others.items() if value != getattr(ScoringOptions, n)]
        if unusable:
            raise DragomanError(
                f"{', '.join(unusable)}: expected none, {self._name} is an encoder-only model and "
                "reads a source"
            )
        text = self._encoder.tokenize(source, split_special_tokens=splits)
        ids = np.array([text.ids])
        check()
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
    """Reads the attention of a model with a decoder."""

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        scorer: TextScorer | SpeechScorer,
        front_end: TextFrontEnd | Transcriber,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._backend, self._scorer = manifest, backend, scorer
        self._front_end, self._codec = front_end, codec
        self._stand_in: int | None = None

    def attention(
        self, source: Any, target: Any, options: ScoringOptions, check: StopCheck
    ) -> Attention:
        """Return the attention maps of a source and a target.

        Args:
            target: a text or token ids; None: the model's own output, or no target for a
                decoder-only model
        """
        if target is None and self._manifest.model.has_encoder:
            (result,) = self._front_end.generate([source], generation_of(options), check)
            target, options = as_target(result, options)
        pair = self._pair(source, target, options)
        check()
        return self._of_pair(pair)

    def alignments(
        self,
        pairs: Sequence[tuple[Any, Sequence[int]]],
        options: ScoringOptions,
        check: StopCheck,
        unknown_replaced: bool = False,
    ) -> list[Alignment]:
        """Align the words of sources and outputs.

        Args:
            pairs: each source, and the output's tokens without the end token
        """
        align_pair = partial(self.alignment, options=options, unknown_replaced=unknown_replaced)
        return aligned_in_turn(pairs, align_pair, check)

    def alignment(
        self,
        pair: tuple[Any, Sequence[int]],
        options: ScoringOptions,
        *,
        unknown_replaced: bool = False,
    ) -> Alignment:
        """Align the words of a source and an output; see `alignments`."""
        try:
            read, weights = self._aligning(*split_pair(pair), options)
        except RejectedError as error:
            return Alignment(error=str(error))
        source_words, of_source = self._source_words(pair[0], read, options)
        stream = self._word_stream() if unknown_replaced else None
        target_words, of_target = self._target_words(read, stream)
        pairs = align(weights, of_source, of_target)
        return Alignment(tuple(source_words), tuple(target_words), pairs)

    def with_unknown_replaced(
        self,
        source: Any,
        tokens: Sequence[int],
        options: ScoringOptions,
        skip_special_tokens: bool = True,
        by: Literal["word", "token"] = "word",
        check: StopCheck = never_stopped,
    ) -> str | None:
        """Replace each unknown token of an output by what it attends to most.

        Returns:
            the text; None if the output has no unknown tokens
        """
        if by not in ("word", "token"):
            raise DragomanError(f"by: expected 'word' or 'token', found {shown(by)}")
        if self._codec is None:
            raise DragomanError(NO_WORDS)
        unknown = self._codec.unknown_target
        stream = self._word_stream(skip_special_tokens)
        if stream is None or unknown not in tokens:
            return None
        check()
        pair, weights = self._aligning(source, tokens, options)
        words, of_source = self._source_words(source, pair, options, each_token=by == "token")
        text = ""
        for token, row in zip(pair.target, weights, strict=True):
            piece = stream.step(token)
            word = attended_word(row, of_source) if token == unknown else None
            if word is not None:
                space = piece[: len(piece) - len(piece.lstrip())]
                piece = f"{space if text else ''}{words[word]}"
            text += piece
        return text + stream.rest()

    def _word_stream(self, skip_special_tokens: bool = True) -> TextStream | None:
        codec = self._codec
        if codec is None or codec.unknown_target is None:
            return None
        unknown, vocabulary = codec.unknown_target, self._manifest.model.target_vocab_size
        if self._stand_in is None:
            self._stand_in = word_token(codec.stream, vocabulary, unknown)
        stream = codec.stream(skip_special_tokens=skip_special_tokens)
        return WordStream(stream, unknown, self._stand_in)

    def _aligning(
        self, source: Any, tokens: Sequence[int], options: ScoringOptions
    ) -> tuple[ForcedPair, NDArray[np.float32]]:
        pair = self._pair(source, token_ids(tokens), options.replace(end_token=False))
        weights = self._of_pair(pair).aligning
        return pair, weights[len(pair.given) - 1 :]

    def _pair(self, source: Any, target: Any, options: ScoringOptions) -> ForcedPair:
        if target is None:  # a decoder-only model reads the text without a continuation
            splits = bool(options.split_special_tokens)
            read = tuple(self._front_end.tokenize(source, None, split_special_tokens=splits))
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
            tuple(spelled(token, self._codec) for token in pair.read),
            tuple(spelled(token, self._codec) for token in target),
            _first(outputs.get("encoder_attention")),
            _first(outputs.get("self_attention")),
            _first(outputs.get("cross_attention")),
            self._manifest.generation.heads_that_align,
        )

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

    def _source_words(
        self, source: Any, pair: ForcedPair, options: ScoringOptions, *, each_token: bool = False
    ) -> tuple[list[str], list[int | None]]:
        ids = [int(token) for token in pair.source]
        if self._codec is None:
            return list(map(str, ids)), list(range(len(ids)))
        if isinstance(source, str):
            splits = bool(options.split_special_tokens)
            words, of_token = self._codec.source_words(
                source,
                most=len(ids) if options.truncate else None,
                split_special_tokens=splits,
                each_token=each_token,
            )
            special = self._codec.template_tokens(options.source_language)
            return _first_words(words, of_token, ids, special)
        stream = self._codec.source_stream()
        if not each_token:
            return words_of(ids, stream)
        pieces = [stream.step(token).strip() for token in ids]
        return pieces, [place if piece else None for place, piece in enumerate(pieces)]

    def _target_words(
        self, pair: ForcedPair, stream: TextStream | None
    ) -> tuple[list[str], list[int | None]]:
        if self._codec is None:
            return list(map(str, pair.target)), list(range(len(pair.target)))
        return words_of(pair.target, stream or self._codec.stream())


def _first_words(
    words: list[str], of_token: list[int | None], ids: Sequence[int], special: Sequence[int]
) -> tuple[list[str], list[int | None]]:
    """Return the words of a source, of which a truncated one has only the first."""
    if len(of_token) <= len(ids):
        return words, of_token
    last = sum(1 for _ in takewhile(special.__contains__, reversed(ids)))
    of_token = [*of_token[: len(ids) - last], *[None] * last]
    count = max((word for word in of_token if word is not None), default=-1) + 1
    return words[:count], of_token


def _first(weights: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    return None if weights is None else weights[0]


def as_target(result: Result, options: ScoringOptions) -> tuple[list[int], ScoringOptions]:
    """Return an output as a target, and the options for scoring it."""
    if result.error is not None:
        raise RejectedError(result.error)
    return list(result.tokens), options.replace(end_token=result.end_token is not None)


def generation_of(options: ScoringOptions) -> GenerationOptions:
    """Return the options for generating a missing target."""
    return GenerationOptions(**{name: getattr(options, name) for name in OF_GENERATION})
