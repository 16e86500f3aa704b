"""Tokenizes sources and targets of a model, and rejects texts that are too long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import DragomanError

from ..format.texts import Languages, SourceTemplate, Tokenizers
from .codecs import (
    Codec,
    EncodedTarget,
    LibraryCodec,
    PieceCodec,
    TextStream,
    TokenizerError,
    UnknownSymbolsError,
)
from .codecs.interface import Words
from .surfaces import Surfaces

__all__ = [
    "EncodedTarget",
    "TextCodec",
    "TextStream",
    "TokenizerError",
    "TooLongError",
    "UnknownSymbolsError",
]


class TextCodec:
    """The tokenizers of a model's sources and targets.

    Args:
        source, target: files of the `tokenizers` library, or SentencePiece models if they have a
            vocabulary; source is None for a model without source texts
        source_vocabulary, target_vocabulary: files of token ids of SentencePiece pieces
        template: special tokens around a source text; None: the source's file defines them
        languages: languages of a multilingual model

    Raises:
        BundleError: a file is not a tokenizer or vocabulary or fails on trial texts, or it is a
            SentencePiece model and the package sentencepiece is missing.
    """

    def __init__(
        self,
        source: Path | None,
        target: Path,
        *,
        source_vocabulary: Path | None = None,
        target_vocabulary: Path | None = None,
        template: SourceTemplate | None = None,
        languages: Languages | None = None,
    ) -> None:
        own_template = template is None
        self._target = _open(target, target_vocabulary, own_template)
        if source is None or (source, source_vocabulary) == (target, target_vocabulary):
            self._source = self._target if source else None
        else:
            self._source = _open(source, source_vocabulary, own_template)
        self._template = template or SourceTemplate((), ())
        self._languages = languages
        self._surfaces: Surfaces | None = None

    @classmethod
    def of(
        cls, tokenizers: Tokenizers, directory: Path, languages: Languages | None = None
    ) -> TextCodec:
        """Create the codec of a manifest's tokenizers, whose files are in a directory."""
        source, source_vocabulary, target_vocabulary = (
            directory / name if name else None
            for name in (
                tokenizers.source,
                tokenizers.source_vocabulary,
                tokenizers.target_vocabulary,
            )
        )
        return cls(
            source,
            directory / tokenizers.target,
            source_vocabulary=source_vocabulary,
            target_vocabulary=target_vocabulary,
            template=tokenizers.template,
            languages=languages,
        )

    def encode(
        self, text: str, source_language: str | None = None, *, most: int | None = None
    ) -> list[int]:
        """Tokenize a source text, with the special tokens that the model was trained with.

        The result is empty if the text has only special tokens.

        Args:
            most: maximum number of tokens; only the beginning of a far longer text is encoded

        Raises:
            TooLongError: there are far more tokens than `most`; a small excess is returned.
            TokenizerError: the tokenizer fails on the text.
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                unknown token.
            LanguageError: the language is unknown, or is required and missing.
            DragomanError: sources of the model are not texts.
        """
        codec, language = self._of_source, None
        if self._languages is not None and self._template.has_language:
            language = self._languages.source_token(source_language)
        _check(codec, text, most)
        tokens = codec.encode(text)
        return self._template.around(tokens, language) if tokens else []

    def source_words(self, text: str) -> Words:
        """Return the words of a source text and the word of each token of `encode`."""
        template = self._template
        before, after = [None] * len(template.prefix), [None] * len(template.suffix)
        words, of_token = self._of_source.words(text)
        return Words(words, [*before, *of_token, *after])

    def encode_target(self, text: str, *, most: int | None = None) -> EncodedTarget:
        """Tokenize a target text, without the end token.

        Args:
            most: as for `encode`

        Raises:
            TooLongError, TokenizerError, UnknownSymbolsError: as for `encode`.
        """
        _check(self._target, text, most)
        return self._target.encode_target(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode target tokens to a text without special tokens."""
        return self._target.decode(tokens)

    def surfaces(self, vocabulary: int) -> Surfaces:
        """Return the text that each target token adds to an output; computed on the first call.

        Args:
            vocabulary: number of target tokens

        Raises:
            TokenizerError: see `Surfaces.of`.
        """
        if self._surfaces is None:
            self._surfaces = Surfaces.of(self._target, vocabulary)
        return self._surfaces

    def stream(self) -> TextStream:
        """Return a decoder of a stream of target tokens."""
        return self._target.stream()

    def source_stream(self) -> TextStream:
        """Return a decoder of a stream of source tokens.

        Raises:
            DragomanError: sources of the model are not texts.
        """
        return self._of_source.stream()

    def source_piece(self, token: int) -> str | None:
        """Return a source token as the vocabulary spells it; None for ids without a token.

        Raises:
            DragomanError: sources of the model are not texts.
        """
        return self._of_source.piece(token)

    def target_piece(self, token: int) -> str | None:
        """Return a target token as the vocabulary spells it; None for ids without a token."""
        return self._target.piece(token)

    @property
    def unknown_target(self) -> int | None:
        """The id of the target vocabulary's unknown token; None if there is none."""
        return self._target.unknown

    @property
    def _of_source(self) -> Codec:
        if self._source is None:
            raise DragomanError("expected a model whose sources are texts, found one without")
        return self._source


def _check(codec: Codec, text: str, most: int | None) -> None:
    """Reject texts with lone surrogates and texts that are far too long."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the libraries reject lone surrogates
        raise UnknownSymbolsError([text[error.start : error.end]]) from error
    if most is not None:
        check_length(codec, text, most)


def _open(path: Path, vocabulary: Path | None, own_template: bool) -> Codec:
    if vocabulary is None:
        return LibraryCodec(path, special_tokens=own_template)
    return PieceCodec(path, vocabulary)


# The time to encode a text grows with its length, for some tokenizers faster than linearly. A limit
# in characters would be wrong: a million spaces, or a million unknown symbols, may be one token. So
# a beginning of the text is encoded, and then longer ones while the tokens are within the limit.

CHARACTERS_PER_TOKEN = 8
"""Texts in any language have fewer, so that one beginning is usually enough."""
FURTHER_CHARACTERS = 2048
"""A token depends on less than half as many characters after it: words have at most
`codecs.tokenizer_file.LONGEST_WORD` before they become one unknown token."""


class TooLongError(ValueError):
    """A text has too many tokens.

    Attributes:
        tokens: lower bound of the number of tokens
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens = tokens


def check_length(codec: Codec, text: str, most: int) -> None:
    """Check that a text has at most `most` tokens, encoding only as much of it as needed.

    Only tokens in the first half of an encoded beginning are counted, since later text cannot
    change them. A text within the limit is never rejected; an accepted text may slightly exceed it.

    Raises:
        TooLongError: there are more tokens.
        UnknownSymbolsError, TokenizerError: as for `Codec.encode`.
    """
    counted = CHARACTERS_PER_TOKEN * most + FURTHER_CHARACTERS
    while 2 * counted < len(text):
        beginning = _whole_words(text[: 2 * counted], least=counted + counted // 2)
        tokens = codec.count(beginning, counted)
        if tokens > most:
            raise TooLongError(tokens)
        counted *= 2


def _whole_words(text: str, *, least: int) -> str:
    """Remove the last word, which may be cut, if at least `least` characters remain."""
    *rest, _ = text.rsplit(None, 1) or [""]
    return rest[0] if rest and len(rest[0]) >= least else text
