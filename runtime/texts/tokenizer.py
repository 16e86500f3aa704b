"""Tokenization for a model: source texts -> token ids, target token ids -> texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import DragomanError

from ..format.languages import Languages, SourceTemplate
from ..format.tokenizers import Tokenizers
from .codecs import (
    Codec,
    EncodedTarget,
    LibraryCodec,
    PieceCodec,
    TextStream,
    TokenizerError,
    UnknownSymbolsError,
)
from .codecs.spans import Words
from .long_texts import TooLongError, check_length
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
    """A tokenizer for each side of a model.

    Args:
        source, target: files of the `tokenizers` library, or SentencePiece models if there is a
            vocabulary for them; source is None for a model that takes no texts
        source_vocabulary, target_vocabulary: files with the ids of a SentencePiece model's pieces
        template: the special tokens around a source text; None: those that the source's tokenizer
            file defines
        languages: the languages of a multilingual model

    Raises:
        BundleError: a file is not a tokenizer, not a vocabulary or fails when it is tried out, or
            it is a SentencePiece model and the package sentencepiece is missing.
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
        """The codec for a manifest's tokenizers, whose files are in the directory."""
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
        """Source token ids, with the special tokens that the model was trained with.

        Empty if the text encodes to nothing but special tokens.

        Args:
            most: how many token ids there may be: of a text that has far more, no more is encoded
                than it takes to know that

        Raises:
            TooLongError: there are far more; a few too many are returned.
            TokenizerError: the tokenizer's file makes it fail on this text.
            UnknownSymbolsError: the text has symbols without a token, and the tokenizer has no
                token for unknown ones.
            LanguageError: the language is unknown, or missing although the model needs one.
            DragomanError: the model takes no texts.
        """
        codec, language = self._of_source, None
        if self._languages is not None and self._template.has_language:
            language = self._languages.source_token(source_language)
        _check(codec, text, most)
        tokens = codec.encode(text)
        return self._template.around(tokens, language) if tokens else []

    def source_words(self, text: str) -> Words:
        """The words of a source, and which of them each source token belongs to.

        Args:
            text: one that `encode` encodes
        """
        template = self._template
        before, after = [None] * len(template.prefix), [None] * len(template.suffix)
        words, of_token = self._of_source.words(text)
        return Words(words, [*before, *of_token, *after])

    def encode_target(self, text: str, *, most: int | None = None) -> EncodedTarget:
        """The token ids of a text that the model is to produce, without the end token.

        Args:
            most: as for `encode`

        Raises:
            TooLongError, TokenizerError, UnknownSymbolsError: as for `encode`.
        """
        _check(self._target, text, most)
        return self._target.encode_target(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._target.decode(tokens)

    def surfaces(self, vocabulary: int) -> Surfaces:
        """What each target token adds to a text, found out the first time.

        Args:
            vocabulary: the number of target tokens

        Raises:
            TokenizerError: see `Surfaces.of`.
        """
        if self._surfaces is None:
            self._surfaces = Surfaces.of(self._target, vocabulary)
        return self._surfaces

    def stream(self) -> TextStream:
        return self._target.stream()

    def source_stream(self) -> TextStream:
        """Decodes source tokens.

        Raises:
            DragomanError: the model takes no texts.
        """
        return self._of_source.stream()

    def source_piece(self, token: int) -> str | None:
        """A source token as the vocabulary writes it; None for ids that it does not have.

        Raises:
            DragomanError: the model takes no texts.
        """
        return self._of_source.piece(token)

    def target_piece(self, token: int) -> str | None:
        """The same of a target token."""
        return self._target.piece(token)

    @property
    def unknown_target(self) -> int | None:
        """The token that stands for what the target's vocabulary does not have."""
        return self._target.unknown

    @property
    def _of_source(self) -> Codec:
        if self._source is None:
            raise DragomanError("this model takes no texts")
        return self._source


def _check(codec: Codec, text: str, most: int | None) -> None:
    """Refuse what must not reach a tokenizer: lone surrogates, and texts far too long."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the libraries refuse lone surrogates
        raise UnknownSymbolsError([text[error.start : error.end]]) from error
    if most is not None:
        check_length(codec, text, most)


def _open(path: Path, vocabulary: Path | None, own_template: bool) -> Codec:
    if vocabulary is None:
        return LibraryCodec(path, special_tokens=own_template)
    return PieceCodec(path, vocabulary)
