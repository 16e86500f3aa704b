"""Tokenizes sources and targets of a model, and rejects texts that are too long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path

from dragoman.errors import DragomanError

from ..format.texts import Languages, SourceTemplate, Tokenizers
from .codecs import (
    Codec,
    EncodedSource,
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
    "EncodedSource",
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
            vocabulary; source None: no source texts
        template: special tokens around a source text; None: the source's file defines them

    Raises:
        BundleError: a file is not a tokenizer or vocabulary or fails on trial texts, or
            sentencepiece is missing.
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
        cleans_up: bool = False,
    ) -> None:
        own_template = template is None
        self._target = _open(target, target_vocabulary, own_template)
        if source is None or (source, source_vocabulary) == (target, target_vocabulary):
            self._source = self._target if source else None
        else:
            self._source = _open(source, source_vocabulary, own_template)
        self._template = template or SourceTemplate((), ())
        self._languages = languages
        self._surfaces: dict[frozenset[int], Surfaces] = {}
        self._cleans_up = cleans_up

    @classmethod
    def of(
        cls, tokenizers: Tokenizers, directory: Path, languages: Languages | None = None
    ) -> TextCodec:
        """Create the codec of a manifest's tokenizers."""
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
            cleans_up=tokenizers.clean_up_tokenization_spaces,
        )

    def encode(
        self,
        text: str,
        source_language: str | None = None,
        *,
        most: int | None = None,
        split_special_tokens: bool = False,
    ) -> list[int]:
        """Return the tokens of `encode_source`."""
        return self.encode_source(
            text, source_language, most=most, split_special_tokens=split_special_tokens
        ).tokens

    def encode_source(
        self,
        text: str,
        source_language: str | None = None,
        *,
        most: int | None = None,
        split_special_tokens: bool = False,
    ) -> EncodedSource:
        """Tokenize a source text, with the special tokens that the model was trained with.

        There are no tokens if nothing is left of the text. White space is never unknown.

        Args:
            most: maximum number of tokens; only the beginning of a far longer text is encoded

        Raises:
            TooLongError: there are far more tokens than `most`; a small excess is returned.
            TokenizerError: the tokenizer fails on the text.
            UnknownSymbolsError: symbols have no token, and there is no unknown token.
            LanguageError: the language is unknown, or is required and missing.
            DragomanError: sources of the model are not texts.
        """
        _check(self._of_source, text, most, split_special_tokens)
        found = self._of_source.encode_source(text, split_special_tokens=split_special_tokens)
        return self._around(found, source_language)

    def encode_beginning(
        self,
        text: str,
        source_language: str | None,
        most: int,
        *,
        split_special_tokens: bool = False,
    ) -> EncodedSource:
        """Tokenize a source text, cut at its end to `most` tokens including special tokens.

        Special tokens at both ends are kept, as in Hugging Face's truncation.
        """
        text = self._beginning(text, most, split_special_tokens)
        around = len(self._template.around([], self._language_token(source_language)))
        found = self._of_source.encode_source(
            text, max(0, most - around), split_special_tokens=split_special_tokens
        )
        return self._around(found, source_language)

    def template_tokens(self, source_language: str | None) -> list[int]:
        """Return the special tokens that `encode` adds to a text."""
        language = self._language_token(source_language)
        return self._template.around(self._of_source.template_tokens, language)

    def source_words(
        self,
        text: str,
        *,
        most: int | None = None,
        split_special_tokens: bool = False,
        each_token: bool = False,
    ) -> Words:
        """Return the words of a source text, or its tokens, and that of each token of `encode`."""
        text = self._beginning(text, most, split_special_tokens)
        template = self._template
        before, after = [None] * len(template.prefix), [None] * len(template.suffix)
        words, of_token = self._of_source.words(
            text, split_special_tokens=split_special_tokens, each_token=each_token
        )
        return Words(words, [*before, *of_token, *after])

    def encode_target(
        self, text: str, *, most: int | None = None, split_special_tokens: bool = False
    ) -> EncodedTarget:
        """Tokenize a target text, without the end token."""
        _check(self._target, text, most, split_special_tokens)
        return self._target.encode_target(text, split_special_tokens=split_special_tokens)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode target tokens to a text."""
        text = self._target.decode(tokens, skip_special_tokens=skip_special_tokens)
        return clean_up(text) if self._cleans_up else text

    def written(self, text: str) -> set[str]:
        """Return the texts, as tokens write them, that decoding makes a part of an output of.

        Raises:
            ValueError: there are too many.
        """
        return uncleaned(text) if self._cleans_up else {text}

    def surfaces(self, vocabulary: int, shown: frozenset[int] = frozenset()) -> Surfaces:
        """Return the text that each target token adds to an output."""
        if shown not in self._surfaces:
            self._surfaces[shown] = Surfaces.of(self._target, vocabulary, shown)
        return self._surfaces[shown]

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """Return a decoder of a stream of target tokens."""
        stream = self._target.stream(skip_special_tokens=skip_special_tokens)
        return CleaningStream(stream) if self._cleans_up else stream

    def source_stream(self) -> TextStream:
        """Return a decoder of a stream of source tokens."""
        return self._of_source.stream()

    def source_piece(self, token: int) -> str | None:
        """Return a source token as the vocabulary spells it; None without a token."""
        return self._of_source.piece(token)

    def target_piece(self, token: int) -> str | None:
        """Return a target token as the vocabulary spells it; None without a token."""
        return self._target.piece(token)

    def target_token(self, piece: str) -> int | None:
        """Return the id of a target token by its piece; None if there is none."""
        try:
            piece.encode()
        except UnicodeEncodeError:  # the libraries reject lone surrogates
            return None
        return self._target.token(piece)

    @property
    def special_targets(self) -> Mapping[int, str]:
        """The special target tokens by id."""
        return self._target.special_tokens

    @property
    def unknown_target(self) -> int | None:
        """The id of the unknown target token; None if there is none."""
        return self._target.unknown

    def _around(self, found: EncodedSource, source_language: str | None) -> EncodedSource:
        language = self._language_token(source_language)
        tokens = self._template.around(found.tokens, language) if found.tokens else []
        return EncodedSource(tokens, "".join(found.unknown.split()))

    def _beginning(self, text: str, most: int | None, splits: bool) -> str:
        try:
            _check(self._of_source, text, most, splits)
        except TooLongError as error:
            return error.beginning
        return text

    def _language_token(self, source_language: str | None) -> int | None:
        if self._languages is None or not self._template.has_language:
            return None
        return self._languages.source_token(source_language)

    @property
    def _of_source(self) -> Codec:
        if self._source is None:
            raise DragomanError("expected a model whose sources are texts, found one without")
        return self._source


def _check(codec: Codec, text: str, most: int | None, split: bool) -> None:
    """Reject texts with lone surrogates and texts that are far too long."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the libraries reject lone surrogates
        raise UnknownSymbolsError([text[error.start : error.end]]) from error
    if most is not None:
        check_length(codec, text, most, split=split)


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
        beginning: beginning with the same first tokens, as many as are allowed, as the text
    """

    def __init__(self, tokens: int, beginning: str) -> None:
        super().__init__(f"at least {tokens} tokens")
        self.tokens, self.beginning = tokens, beginning


def check_length(codec: Codec, text: str, most: int, *, split: bool = False) -> None:
    """Check that a text has at most `most` tokens.

    Only tokens in the first half of an encoded beginning are counted, since later text cannot
    change them. An accepted text may slightly exceed the limit.
    """
    counted = CHARACTERS_PER_TOKEN * most + FURTHER_CHARACTERS
    while 2 * counted < len(text):
        beginning = _whole_words(text[: 2 * counted], least=counted + counted // 2)
        tokens = codec.count(beginning, counted, split_special_tokens=split)
        if tokens > most:
            raise TooLongError(tokens, beginning)
        counted *= 2


def _whole_words(text: str, *, least: int) -> str:
    """Remove the last word, which may be cut, if at least `least` characters remain."""
    *rest, _ = text.rsplit(None, 1) or [""]
    return rest[0] if rest and len(rest[0]) >= least else text


_REPLACEMENTS = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't")),
    *((" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
# Some matches arise only where an apostrophe has lost its spaces.
_MATCHES = {old for old, _ in _REPLACEMENTS}
_MATCHES |= {old.replace("'", " ' ") for old in _MATCHES if old != " ' "}
_BEGINNINGS = {match[:n] for match in _MATCHES for n in range(1, len(match))}
_CLEANED = re.compile(r"([.?!,]|n't|'(?:m|s|ve|re)?)")
MOST_MARKS = 6
"""Marks in a forbidden text, each of which can have lost a space."""
_LONGEST = max(map(len, _BEGINNINGS))


def clean_up(text: str) -> str:
    """Return a decoded text without spaces before punctuation and English contractions."""
    for old, new in _REPLACEMENTS:
        text = text.replace(old, new)
    return text


def uncleaned(text: str) -> set[str]:
    """Return the texts that `clean_up` may have made a text of.

    Raises:
        ValueError: the text has too many places where a space can have been.
    """
    parts = _CLEANED.split(text)
    marks = parts[1::2]
    if len(marks) > MOST_MARKS:
        raise ValueError(f"expected at most {MOST_MARKS} marks, found {len(marks)}")
    choices = ((m, f" {m}", m.replace("'", " ' ")) for m in marks)
    return {
        "".join(chain.from_iterable(zip(parts[::2], (*chosen, ""), strict=True)))
        for chosen in product(*choices)
    }


class CleaningStream:
    """Applies `clean_up` to a stream of tokens; a possible beginning of a match is held back."""

    def __init__(self, stream: TextStream) -> None:
        self._stream, self._held = stream, ""

    def step(self, token: int) -> str:
        """Return the text that a token adds."""
        text = self._held + self._stream.step(token)
        kept = max(
            n for n in range(min(_LONGEST, len(text)) + 1) if not n or text[-n:] in _BEGINNINGS
        )
        end = len(text) - kept
        while text[end : end + 1] == " " and text[:end].endswith((" '", " ")):
            end -= 1 if text[end - 1] == " " else 2
        whole, self._held = text[:end], text[end:]
        return clean_up(whole)

    def rest(self) -> str:
        """Return the text that is held back."""
        held, self._held = self._held + self._stream.rest(), ""
        return clean_up(held)
