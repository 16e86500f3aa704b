"""Aligns each target word with the source word it attends to most.

Tokens of speech are aligned with frames of audio by dynamic time warping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import StopCheck, StoppedError
from ..backends.interface import Backend, BackendError, DeviceLostError
from ..decoding.request import as_batch
from ..format.contract import Slot
from ..format.manifest import Manifest
from ..scoring.interface import ScoredPair, ScoringOptions
from ..scoring.speech import SpeechPair, SpeechScorer
from ..scoring.teacher_forcing import ForcedPair
from ..speech.word_times import WordTimer
from ..texts.codecs.interface import TextStream
from ..texts.tokenizer import TextCodec

NO_WORDS = (
    "replace_unknown: expected a bundle with tokenizers or vocabularies, whose source words "
    "replace unknown tokens, found one of token ids only"
)


@dataclass(frozen=True)
class Alignment:
    """A word alignment, or for speech an alignment of tokens with frames."""

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    """`source` and `target`: words of the texts, split at white space; for speech no source, and
    the tokens of the transcript."""
    pairs: tuple[tuple[int, int], ...] = ()
    """(source word, target word) indices from 0, in the order of target words; for speech (frame of
    20 ms, token) in the order of time, ending with the end token."""
    error: str | None = None
    """The reason for rejecting the pair; None if it was aligned."""
    probabilities: tuple[float, ...] = ()
    """For speech, of each token among all text tokens; empty for texts."""

    def __str__(self) -> str:
        """Return the pairs in Pharaoh format, such as `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


class SpeechAligner:
    """Aligns tokens of transcripts with frames of at most a window of audio."""

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        scorer: SpeechScorer,
        codec: TextCodec | None,
    ) -> None:
        self._manifest, self._backend = manifest, backend
        self._scorer, self._codec = scorer, codec
        self._timer = WordTimer(manifest, backend)

    def alignments(
        self, pairs: Sequence[Any], options: ScoringOptions, check: StopCheck
    ) -> list[Alignment]:
        """Align pairs of audio and text, or text tokens."""
        self._timer.check()

        def alignment(pair: Any) -> Alignment:
            ((audio, forced),) = self._scorer.read_texts([pair], options, check)
            return self._of_pair(audio, forced)

        return aligned_in_turn(pairs, alignment, check)

    def _of_pair(
        self, audio: SpeechPair | ScoredPair, forced: ForcedPair | ScoredPair
    ) -> Alignment:
        if isinstance(audio, ScoredPair):
            return Alignment(error=audio.error)
        if isinstance(forced, ScoredPair):
            return Alignment(error=forced.error)
        try:
            return self._aligned(audio, forced)
        except DeviceLostError:
            raise
        except BackendError as error:
            return Alignment(error=str(error))

    def _aligned(self, audio: SpeechPair, forced: ForcedPair) -> Alignment:
        manifest, tokens = self._manifest, audio.target
        special = [token for token in tokens if token >= manifest.model.end_token_id]
        if special:
            return Alignment(error=f"expected tokens of a text, found the token {special[0]}")
        source, mask = as_batch([audio.window], manifest.model)
        outputs = self._backend.encode(source, mask)
        encoded = {t.slot: outputs[t.name] for t in manifest.graphs["encoder"].outputs}
        encoded[Slot("source_mask")] = mask
        times = self._timer.times(encoded, forced.given, tokens, audio.frames)
        return Alignment(
            target=tuple(spelled(token, self._codec) for token in tokens),
            pairs=tuple((frame, token) for token, frame in times.path.tolist()),
            probabilities=tuple(times.probabilities.tolist()),
        )


def aligned_in_turn(
    pairs: Sequence[Any], alignment: Callable[[Any], Alignment], check: StopCheck
) -> list[Alignment]:
    """Return the alignment of each pair."""
    found: list[Alignment] = []
    try:
        for pair in pairs:
            check()
            found.append(alignment(pair))
    except StoppedError as error:
        raise type(error)(str(error), dict(enumerate(found))) from error
    return found


def spelled(token: int, codec: TextCodec | None) -> str:
    """Return a target token's piece; its number without tokenizers."""
    piece = codec.target_piece(token) if codec else None
    return str(token) if piece is None else piece


def align(
    weights: NDArray[np.float32],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> tuple[tuple[int, int], ...]:
    """Align each target word with the source word that its tokens attend to most in sum.

    Args:
        weights: [target tokens, source tokens]
        source_words, target_words: index of the word of each token; None: no word
    """
    sources = _together(weights.T, source_words)
    if not len(sources):
        return ()
    by_word = _together(sources.T, target_words)
    return tuple((int(row.argmax()), word) for word, row in enumerate(by_word))


def attended_word(weights: NDArray[np.float32], source_words: Sequence[int | None]) -> int | None:
    """Return the source word that a target token attends to most, if any."""
    sources = _together(weights[:, None], source_words)
    return int(sources[:, 0].argmax()) if len(sources) else None


def _together(rows: NDArray[np.float32], words: Sequence[int | None]) -> NDArray[np.float32]:
    """Sum rows of tokens [tokens, ...] for each word [words, ...]."""
    count = 1 + max((word for word in words if word is not None), default=-1)
    sums = np.zeros((count, *rows.shape[1:]), np.float32)
    for row, word in zip(rows, words, strict=True):
        if word is not None:
            sums[word] += row
    return sums


def words_of(tokens: Sequence[int], stream: TextStream) -> tuple[list[str], list[int | None]]:
    """Decode tokens one by one into words separated by white space.

    Returns:
        the words, and for each token the index of its word: the last one that it is part of, also
        of an incomplete character; None for tokens without text
    """
    text = ""
    found: list[int | None] = []
    incomplete: list[int] = []
    for index, token in enumerate(tokens):
        piece = stream.step(token)
        begun, text = bool(text), text + piece
        found.append(None)
        if not piece:
            # Before any text these are special tokens, such as a language's.
            incomplete += [index] * begun
            continue
        if piece.strip():
            word = len(text.split()) - 1
            found[index] = word
            for earlier in incomplete if not piece[0].isspace() else ():
                found[earlier] = word
        incomplete = []
    return text.split(), found


class WordStream:
    """Decodes a stream of tokens in which an unknown token counts as a word.

    Most decoders skip special tokens, and after a leading one also the space before the next token.
    An ordinary word in place of the unknown token keeps it.
    """

    def __init__(self, stream: TextStream, unknown: int, stand_in: int) -> None:
        self._stream, self._unknown, self._stand_in = stream, unknown, stand_in

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        return self._stream.step(self._stand_in if token == self._unknown else token)

    def rest(self) -> str:
        """Return the text that is held back."""
        return self._stream.rest()


def word_token(stream: Callable[[], TextStream], vocabulary: int, unknown: int) -> int:
    """Return a token that is a whole word in any context.

    Without one, it is any token with text, or else the unknown token.
    """
    other = unknown
    for token in range(vocabulary):
        if token == unknown:
            continue
        made = stream()
        _, second = made.step(token), made.step(token)
        if second[:1].isspace() and second.strip().isalnum():
            return token
        if other == unknown and second.strip():
            other = token
    return other
