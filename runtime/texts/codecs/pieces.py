"""SentencePiece models with a separate vocabulary of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from dragoman.files.regular_files import VOCABULARY_BYTES, FileError, read_regular
from dragoman.files.strict_json import read_json

from ...format.manifest import BundleError
from ...format.plain_data import Problems, from_plain
from .interface import EncodedTarget, UnknownSymbolsError, Words, words_of_spans
from .tokenizer_file import MOST_GROWTH, TRIAL_TEXTS, failures_of, summary


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of pieces. Ids without a piece are special tokens.

    Attributes:
        pieces: dict[str, int]: piece -> token id; checked as a whole, since it has up to 250,000
            entries
        unknown: token for pieces outside the vocabulary; None: texts with such pieces are rejected
        leading_code: whether a text may begin with a target language code of one token, such as
            `>>fra<< Hello` for a Marian model
    """

    pieces: Any
    unknown: int | None
    leading_code: bool = False


class PieceCodec:
    """A SentencePiece model and the token ids of its pieces."""

    def __init__(self, model: Path, vocabulary: Path) -> None:
        self._path = model
        self._processor = load_sentencepiece(model)
        self._vocabulary = _read_vocabulary(vocabulary)
        self._pieces = {token: piece for piece, token in self._vocabulary.pieces.items()}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        code, text = self._split_code(text)
        return self._ids(code + self._split(text))

    def words(self, text: str) -> Words:
        """Return the words of a text and the word of each token."""
        code, rest = self._split_code(text)
        start = len(text) - len(rest)
        with failures_of(self._path):
            pieces = self._processor.encode(rest, return_type="proto").pieces
        # Begin and end count bytes. If a character has several pieces, only the last has a span.
        of_byte = [n for n, letter in enumerate(text) for _ in letter.encode()]
        offset = len(text.encode()) - len(rest.encode())
        parts = [of_byte[offset + p.begin : offset + max(p.end, p.begin + 1)] for p in pieces]
        spans = [(part[0], part[-1] + 1) if part else None for part in parts]
        return words_of_spans(text, [*((0, start) for _ in code), *spans])

    def encode_target(self, text: str) -> EncodedTarget:
        """Return the token ids of a target text."""
        return EncodedTarget([], self._ids(self._split(text)))

    def count(self, text: str, end: int) -> int:
        """Count the tokens that end within the first `end` characters."""
        code, rest = self._split_code(text)
        pieces = self._split(rest)
        with failures_of(self._path):
            characters = len(self._processor.normalize(rest[: max(end - len("".join(code)), 0)]))
        # A piece for a byte has more characters than the text, so that fewer tokens are counted.
        ends = accumulate(map(len, pieces))
        within = [piece for piece, last in zip(pieces, ends, strict=True) if last <= characters]
        return len(self._ids(code + within))

    def _split(self, text: str) -> list[str]:
        """Split a text into pieces."""
        with failures_of(self._path):
            pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def _ids(self, pieces: list[str]) -> list[int]:
        ids, unknown = self._vocabulary.pieces, self._vocabulary.unknown
        if unknown is None:
            missing = [piece for piece in pieces if piece not in ids]
            if missing:
                raise UnknownSymbolsError(list(dict.fromkeys(missing)))
            return [ids[piece] for piece in pieces]
        return [ids.get(piece, unknown) for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to a text without special tokens."""
        return self.join([self._pieces[token] for token in tokens if token in self._pieces]).strip()

    def piece(self, token: int) -> str | None:
        """Return a token as the vocabulary spells it."""
        return self._pieces.get(token)

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token; None if there is none."""
        return self._vocabulary.unknown

    def stream(self) -> PieceStream:
        """Return a decoder of a stream of tokens."""
        return PieceStream(self)

    def join(self, pieces: list[str]) -> str:
        """Join pieces to a text without the space before the first word."""
        # SentencePiece keeps the word boundary of pieces that its own model does not have.
        with failures_of(self._path):
            text = str(self._processor.decode_pieces(pieces))
        return text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")

    def _split_code(self, text: str) -> tuple[list[str], str]:
        end = text.find("<<")
        if not (self._vocabulary.leading_code and text.startswith(">>") and end >= 0):
            return [], text
        return [text[: end + 2]], text[end + 2 :]


class PieceStream:
    """Decodes a stream of tokens piece by piece."""

    def __init__(self, codec: PieceCodec) -> None:
        self._codec = codec
        self._incomplete: list[str] = []
        self._space = ""
        self._started = False

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        piece = self._codec.piece(token)
        if piece is None:
            return ""
        self._incomplete.append(piece)
        # The letter keeps the space before the pieces.
        text = self._codec.join(["x", *self._incomplete])[1:]
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._incomplete = []
        # Texts neither begin nor end with a space: a space is output with the next piece.
        text = self._space + text
        shown = text.rstrip() if self._started else text.strip()
        self._space = text[len(text.rstrip()) :] if self._started or shown else ""
        self._started = self._started or bool(shown)
        return shown


def load_sentencepiece(path: Path) -> Any:
    """Load a `SentencePieceProcessor`.

    Raises:
        BundleError: the file is not a SentencePiece model or fails on trial texts, or the package
            sentencepiece is missing.
    """
    try:
        library = import_module("sentencepiece")
    except ImportError as error:
        raise BundleError(
            str(path),
            [
                f"the package sentencepiece cannot be imported ({error}): "
                "pip install 'dragoman[sentencepiece]'"
            ],
        ) from error
    processor = library.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(read_regular(path, VOCABULARY_BYTES))
    except FileError as error:
        raise BundleError(str(path), [error.problem]) from error
    except RuntimeError as error:
        raise BundleError(str(path), [f"not a SentencePiece model: {error}"]) from error
    try:
        _try_out(processor)
    except Exception as error:  # among others UnicodeDecodeError
        problem = f"fails when it is tried out: {summary(error)}"
        raise BundleError(str(path), [problem]) from error
    return processor


def _try_out(processor: Any) -> None:
    for text in TRIAL_TEXTS:
        if len(processor.normalize(text)) > MOST_GROWTH * (1 + len(text)):
            raise ValueError(f"it makes a text more than {MOST_GROWTH} times as long")
        processor.decode_pieces(processor.encode(text, out_type=str))


def _read_vocabulary(path: Path) -> Vocabulary:
    try:
        data = read_json(path, limit=VOCABULARY_BYTES)
    except FileError as error:
        raise BundleError(str(path), [error.problem]) from error
    problems = Problems()
    vocabulary = from_plain(Vocabulary, data, "vocabulary", problems)
    if vocabulary is None:
        raise BundleError(str(path), problems)
    ids: list[Any] = (
        list(vocabulary.pieces.values()) if isinstance(vocabulary.pieces, dict) else [None]
    )
    if not set(map(type, ids)) <= {int} or len(set(ids)) < len(ids) or min(ids, default=0) < 0:
        raise BundleError(str(path), ["vocabulary.pieces: expected pieces and distinct token ids"])
    return vocabulary
