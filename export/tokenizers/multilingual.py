"""Families of multilingual models: what tells them source and target language."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from dragoman.runtime.format.languages import Languages, SourceTemplate

from . import language_codes


@dataclass(frozen=True)
class Multilingual:
    codes: Sequence[str]
    """In the order of their tokens, where a checkpoint does not list them."""
    pattern: re.Pattern[str]
    """The token of a language; its group is the code."""
    source: Literal["prefix", "suffix"]
    """Where in the source the token of its language is."""
    target: Literal["start", "first"]

    def token(self, code: str) -> str:
        return f"__{code}__" if self.pattern is _M2M else code

    def among(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        """The languages that have a token in a vocabulary."""
        found = ((self.pattern.fullmatch(piece), token) for piece, token in vocabulary.items())
        return {match[1]: token for match, token in found if match}

    def following(self, first: int, listed: Mapping[str, int]) -> dict[str, int]:
        """The languages numbered from `first`, but as listed where they are."""
        return {code: first + i for i, code in enumerate(self.codes)} | self.among(listed)

    def template(self, end: int, *, legacy: bool = False) -> SourceTemplate:
        """
        Args:
            end: the end token
            legacy: whether the language is behind the text where it is now before it (NLLB)
        """
        if self.source == "suffix" or legacy:
            return SourceTemplate((), (end, "source_language"))
        return SourceTemplate(("source_language",), (end,))

    def languages(
        self,
        tokens: dict[str, int],
        *,
        source: str | None = None,
        target: str | None = None,
        decoding: Mapping[str, Any] = MappingProxyType({}),
    ) -> Languages:
        """
        Args:
            tokens: of the languages, by their codes
            source, target: the languages that the tokenizer's settings state
            decoding: what the model's configuration states of decoding; a start or first token that
                is a language comes before `target`
        """
        codes = {token: code for code, token in tokens.items()}
        first = codes.get(_token(decoding, "forced_bos_token_id"))
        if self.target == "start":
            first = codes.get(_token(decoding, "decoder_start_token_id")) or first
        return Languages(
            tokens,
            self.target,
            source if source in tokens else None,
            first or (target if target in tokens else None),
        )


def _token(decoding: Mapping[str, Any], name: str) -> int:
    """A token id, which may be a list of one; -1 where none is stated."""
    match decoding.get(name):
        case int(token) | [int(token)] if not isinstance(token, bool):
            return token
    return -1


_M2M = re.compile(r"__([a-z]{2,4})__")
_MBART = re.compile(r"([a-z]{2}_[A-Z]{2})")
_NLLB = re.compile(r"([a-z]{3}_[A-Z][a-z]{3})")

MULTILINGUAL = {
    "m2m_100": Multilingual(language_codes.M2M100, _M2M, "prefix", "first"),
    "mbart": Multilingual(language_codes.MBART, _MBART, "suffix", "start"),
    "mbart_50": Multilingual(language_codes.MBART_50, _MBART, "prefix", "first"),
    "nllb": Multilingual(language_codes.NLLB, _NLLB, "prefix", "first"),
    "wmt21": Multilingual(language_codes.WMT21, _M2M, "prefix", "first"),
}
