"""SentencePiece models with a separate vocabulary of token ids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

from dragoman.files.regular_files import VOCABULARY_BYTES, FileError, read_regular
from dragoman.files.strict_json import read_json

from ...format.manifest import BundleError
from ...format.plain_data import Problems, from_plain
from .interface import (
    EncodedSource,
    EncodedTarget,
    Span,
    UnknownSymbolsError,
    Words,
    tokens_as_words,
    words_of_spans,
)
from .tokenizer_file import MOST_GROWTH, TRIAL_TEXTS, failures_of, summary


@dataclass(frozen=True)
class AddedPiece:
    """A token besides the pieces; see `tokenizers.AddedToken`."""

    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of pieces. Ids without a piece are special tokens."""

    pieces: Any
    """dict[str, int]: piece -> token id; checked as a whole, since it has up to 250,000 entries."""
    unknown: int | None
    """Token for pieces outside the vocabulary; None: texts with such pieces are rejected."""
    leading_code: bool = False
    """Whether a text may begin with a target language code of one token, such as `>>fra<< Hello`
    for a Marian model; there, a space follows special tokens in texts."""
    added: tuple[AddedPiece, ...] = ()
    """Tokens that texts are split at."""


class PieceCodec:
    """A SentencePiece model and the token ids of its pieces."""

    def __init__(self, model: Path, vocabulary: Path) -> None:
        self._path = model
        self._processor = load_sentencepiece(model)
        self._vocabulary = _read_vocabulary(vocabulary)
        self._pieces = {token: piece for piece, token in self._vocabulary.pieces.items()}
        added = self._vocabulary.added
        self._added = {token.content: token for token in added}
        self.special_tokens = {token.id: token.content for token in added if token.special}
        self._pieces |= {token.id: token.content for token in added}
        for token in self.special_tokens:
            del self._pieces[token]
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode_source(
        self, text: str, most: int | None = None, *, split_special_tokens: bool = False
    ) -> EncodedSource:
        """Return the token ids of a text."""
        tokens: list[int] = []
        pieces: list[str] = []
        for part, _, added in self._parts(text, split_special_tokens):
            found = self._pieces_of(part) if added is None else [""]
            tokens += self._ids(found) if added is None else [added]
            pieces += found
        unknown = self._vocabulary.unknown
        lacked = (
            piece for piece, token in zip(pieces[:most], tokens, strict=False) if token == unknown
        )
        text = "".join(lacked).replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
        return EncodedSource(tokens[:most], text)

    @property
    def template_tokens(self) -> Sequence[int]:
        """The special tokens around a text: none."""
        return ()

    def words(
        self, text: str, *, split_special_tokens: bool = False, each_token: bool = False
    ) -> Words:
        """Return the words of a text and of each token."""
        spans: list[Span | None] = []
        for part, begin, added in self._parts(text, split_special_tokens):
            whole = [(begin, begin + len(part))]
            spans += whole if added is not None else self._spans(part, begin)
        return (tokens_as_words if each_token else words_of_spans)(text, spans)

    def _spans(self, text: str, begin: int) -> Iterator[Span | None]:
        code, rest = self._split_code(text)
        start = len(text) - len(rest)
        yield from ((begin, begin + start) for _ in code)
        with failures_of(self._path):
            pieces = self._processor.encode(rest, return_type="proto").pieces
        # Begin and end count bytes. If a character has several pieces, only the last has a span.
        of_byte = [begin + start + n for n, letter in enumerate(rest) for _ in letter.encode()]
        for piece in pieces:
            part = of_byte[piece.begin : max(piece.end, piece.begin + 1)]
            yield (part[0], part[-1] + 1) if part else None

    def encode_target(self, text: str, *, split_special_tokens: bool = False) -> EncodedTarget:
        """Return the token ids of a target text."""
        source = self.encode_source(text, split_special_tokens=split_special_tokens)
        return EncodedTarget([], source.tokens)

    def count(self, text: str, end: int, *, split_special_tokens: bool = False) -> int:
        """Count the tokens that end by `end`."""
        counted = 0
        for part, begin, added in self._parts(text, split_special_tokens):
            if begin + len(part) <= end:
                counted += 1 if added is not None else len(self._ids(self._pieces_of(part)))
            elif begin < end and added is None:
                counted += self._count(part, end - begin)
        return counted

    def _count(self, text: str, end: int) -> int:
        code, rest = self._split_code(text)
        pieces = self._split(rest)
        with failures_of(self._path):
            characters = len(self._processor.normalize(rest[: max(end - len("".join(code)), 0)]))
        # A piece for a byte has more characters than the text, so that fewer tokens are counted.
        ends = accumulate(map(len, pieces))
        within = [piece for piece, last in zip(pieces, ends, strict=True) if last <= characters]
        return len(self._ids(code + within))

    def _parts(self, text: str, split_special_tokens: bool) -> list[tuple[str, int, int | None]]:
        """Split a text at added tokens into parts, their places, and the ids of added tokens."""
        if split_special_tokens or not self._added:
            return [(text, 0, None)]
        parts = self._added_pattern.split(text)
        begins = list(accumulate(map(len, parts), initial=0))
        tokens: list[int | None] = [None] * len(parts)
        for i in range(1, len(parts), 2):
            token = self._added[parts[i]]
            left, right = parts[i - 1], parts[i + 1]
            if token.rstrip:
                parts[i + 1] = right.lstrip()
                begins[i + 1] += len(right) - len(parts[i + 1])
            if token.lstrip:
                parts[i - 1] = left.rstrip()
            tokens[i] = token.id
            if token.single_word and left and left[-1] != " ":
                parts[i - 1 : i + 1], tokens[i] = [parts[i - 1] + parts[i], ""], None
            elif token.single_word and right and right[0] != " ":
                parts[i : i + 2], tokens[i] = ["", parts[i] + parts[i + 1]], None
                begins[i + 1] = begins[i]
        found = zip(parts, begins, tokens, strict=False)
        return [(part, begin, token) for part, begin, token in found if part]

    def _pieces_of(self, text: str) -> list[str]:
        code, text = self._split_code(text)
        return code + self._split(text)

    def _split(self, text: str) -> list[str]:
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

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode tokens to a text."""
        text, pieces = "", list[str]()
        for token in tokens:
            if token in self._pieces:
                pieces.append(self._pieces[token])
            elif token in self.special_tokens and not skip_special_tokens:
                text += self.join(pieces) + self.special_text(token)
                pieces = []
        return (text + self.join(pieces)).strip()

    def special_text(self, token: int) -> str:
        """Return a special token as texts show it."""
        return self.special_tokens[token] + " " * self._vocabulary.leading_code

    def piece(self, token: int) -> str | None:
        """Return the piece of a token."""
        return self._pieces.get(token) or self.special_tokens.get(token)

    def token(self, piece: str) -> int | None:
        """Return the id of a token."""
        if piece in self._added:
            return self._added[piece].id
        found: int | None = self._vocabulary.pieces.get(piece)
        return found

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token."""
        return self._vocabulary.unknown

    def stream(self, *, skip_special_tokens: bool = True) -> PieceStream:
        """Return a decoder of a stream of tokens."""
        return PieceStream(self, skip_special_tokens)

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

    def __init__(self, codec: PieceCodec, skip_special_tokens: bool) -> None:
        self._codec, self._skips = codec, skip_special_tokens
        self._incomplete: list[str] = []
        self._held, self._space, self._before = "", "", "x"
        self._started = False

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        if token in self._codec.special_tokens:
            if self._skips:
                return ""
            # The space before the first piece after a special token is not part of the text.
            self._incomplete, self._held, self._before = [], "", ""
            return self._shown(self._codec.special_text(token))
        piece = self._codec.piece(token)
        if piece is None:
            return ""
        self._incomplete.append(piece)
        # The letter keeps the space before the pieces.
        before = [self._before] * bool(self._before)
        text = self._codec.join([*before, *self._incomplete])[len(self._before) :]
        self._held = text if text.endswith("\N{REPLACEMENT CHARACTER}") else ""
        if self._held:
            return ""
        self._incomplete, self._before = [], "x"
        return self._shown(text)

    def rest(self) -> str:
        """Return the incomplete character that is held back."""
        held, self._held = self._held, ""
        return self._shown(held) if held else ""

    def _shown(self, text: str) -> str:
        # Texts neither begin nor end with a space: a space is output with the next piece.
        text = self._space + text
        shown = text.rstrip() if self._started else text.strip()
        self._space = text[len(text.rstrip()) :] if self._started or shown else ""
        self._started = self._started or bool(shown)
        return shown


def load_sentencepiece(path: Path) -> Any:
    """Load a `SentencePieceProcessor`."""
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
        raise BundleError(str(path), ["not a SentencePiece model"]) from error
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
