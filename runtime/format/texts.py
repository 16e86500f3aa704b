"""The tokenizers and languages of a model, and the special tokens around a source."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from dragoman.errors import DragomanError, shown
from dragoman.settings.fields import LEFT_OUT
from dragoman.settings.generation_settings import GenerationSettings


class LanguageError(DragomanError):
    """A language is unknown, or is required and missing."""


@dataclass(frozen=True)
class SourceTemplate:
    """The special tokens before and after a source text.

    An item is a token id, or "source_language" for the token of the text's language.
    """

    prefix: tuple[int | Literal["source_language"], ...]
    suffix: tuple[int | Literal["source_language"], ...]

    @property
    def has_language(self) -> bool:
        """Whether the token of the text's language is among the special tokens."""
        return "source_language" in self.prefix + self.suffix

    def around(self, tokens: Sequence[int], language: int | None = None) -> list[int]:
        """Return the token ids of a text with the special tokens around them."""
        return [
            token if isinstance(token, int) else cast(int, language)
            for token in (*self.prefix, *tokens, *self.suffix)
        ]


@dataclass(frozen=True)
class Languages:
    """The language codes of a multilingual model, and how it receives the target language."""

    tokens: dict[str, int]
    """Language code -> token id."""
    target: Literal["start", "first"]
    """Place of the target language's token. "start": replaces the start token (mBART-25); "first":
    follows the start token (mBART-50, M2M-100, NLLB)."""
    default_source: str | None = None
    default_target: str | None = None

    def source_token(self, code: str | None = None) -> int:
        """Return the token id of a source language; None selects the default.

        Raises:
            LanguageError: the language is unknown, or None and there is no default.
        """
        return self._token(code, self.default_source, "source")

    def target_token(self, code: str | None = None) -> int:
        """Return the token id of a target language; None selects the default.

        Raises:
            LanguageError: the language is unknown, or None and there is no default.
        """
        return self._token(code, self.default_target, "target")

    def start_of(
        self, code: str | None, start_token_id: int, settings: GenerationSettings
    ) -> tuple[int, GenerationSettings]:
        """Return the start token and the generation settings for a target language.

        Raises:
            LanguageError: the language is unknown, or None and there is no default.
        """
        token = self.target_token(code)
        if self.target == "start":
            return token, settings
        return start_token_id, dataclasses.replace(settings, forced_first_token_id=token)

    def _token(self, code: str | None, default: str | None, side: str) -> int:
        code = default if code is None else code
        if code is None:
            examples = ", ".join(sorted(self.tokens)[:3])
            raise LanguageError(
                f"{side}_language: expected one of the {len(self.tokens)} languages of this model "
                f"({examples}, ...), found none"
            )
        if code not in self.tokens:
            folded = {name.casefold(): name for name in sorted(self.tokens)}
            matches = difflib.get_close_matches(code.casefold(), folded, 3, 0.0)
            closest = ", ".join(folded[name] for name in matches)
            raise LanguageError(
                f"{side}_language: expected one of the {len(self.tokens)} languages of this model, "
                f"found {shown(code)}; the closest are {closest}"
            )
        return self.tokens[code]


def languages_of_name(name: str) -> tuple[str, str] | None:
    """Return source and target language at the end of a bundle's name, such as opus-mt-en-de."""
    codes = [part for part in name.split("-")[-2:] if 2 <= len(part) <= 3 and part.isalpha()]
    return (codes[0], codes[1]) if len(codes) == 2 else None


@dataclass(frozen=True)
class Prompts:
    """Texts that an embedding model puts before a source text."""

    texts: dict[str, str]
    """Texts by name, such as "query"."""
    default: str | None = None
    """Name of the one before every text; None: none."""

    def before(self, name: str | None = None) -> str:
        """Return the text of a name; None selects the default.

        Raises:
            DragomanError: the name is unknown.
        """
        name = self.default if name is None else name
        if name is not None and name not in self.texts:
            known = ", ".join(map(repr, self.texts))
            expected = f"expected one of {known}" if known else "this model has no prompts"
            raise DragomanError(f"prompt_name: {expected}, found {shown(name)}")
        return "" if name is None else self.texts[name]


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer files of a bundle for source and target.

    Each file is in the format of the `tokenizers` library or, with a vocabulary, a SentencePiece
    model.
    """

    source: str | None
    """File of the source tokenizer; None: the model does not take texts."""
    target: str
    source_vocabulary: str | None = None
    target_vocabulary: str | None = None
    """`source_vocabulary` and `target_vocabulary`: files of the token ids of SentencePiece pieces,
    see `texts.codecs.pieces.Vocabulary`."""
    template: SourceTemplate | None = None
    """Special tokens around a source; None: the tokenizer file defines them."""
    pretokenized: Annotated[bool, LEFT_OUT] = False
    """Whether texts are tokens of the vocabulary, separated by spaces."""
    clean_up_tokenization_spaces: Annotated[bool, LEFT_OUT] = False
    """Whether spaces before punctuation are removed from outputs."""
    prompts: Annotated[Prompts | None, LEFT_OUT] = None
    """Prompts of an embedding model, if it has any."""

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files, each once."""
        names = (self.source, self.target, self.source_vocabulary, self.target_vocabulary)
        return tuple(dict.fromkeys(name for name in names if name is not None))
