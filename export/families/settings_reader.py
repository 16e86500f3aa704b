"""Typed access to the generation settings of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dragoman.runtime.format.generation_settings import LARGEST_FLOAT32, SMALLEST_FLOAT32


class SettingsReader:
    """Settings by name; problems with their values are added to `problems`, and the defaults take
    their place. A setting that is null is not stated.

    Args:
        values: fields of `generation_config.json` or, if there is none, of `config.json`
    """

    def __init__(self, values: Mapping[str, Any], problems: list[str]) -> None:
        self._values, self.problems = values, problems
        self._ids: dict[str, list[int]] = {}

    def unchecked(self) -> SettingsReader:
        """The same settings, whose problems do not count."""
        return SettingsReader(self._values, [])

    def states(self, name: str) -> bool:
        """Whether there is a value."""
        return self._values.get(name) is not None

    def refuse(self, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
        """Settings that must not be in force; with the values, besides null and empty texts, lists
        and objects, that switch them off.
        """
        self.problems += [
            f"{name}: this generation setting is not supported, found {self._values[name]!r}"
            for name, neutral in unsupported.items()
            if self._values.get(name) not in (None, "", [], {}, *neutral)
        ]

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """An integer that is not too small."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self.problems.append(f"{name}: expected an integer, found {value!r}")
            return default
        if value < least:
            self.problems.append(f"{name}: expected at least {least}, found {value}")
            return default
        return value

    def real(self, name: str, default: float, least: float, largest: float) -> float:
        """A number within a range."""
        value = self._values.get(name)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= largest:
            self.problems.append(
                f"{name}: expected a number from {least:g} to {largest:g}, found {value!r}"
            )
            return default
        return float(value)

    def positive(self, name: str) -> float:
        """A positive number within float32; 1 if it is not stated."""
        value = self._values.get(name)
        if value is None:
            return 1.0
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not SMALLEST_FLOAT32 <= value <= LARGEST_FLOAT32:
            self.problems.append(
                f"{name}: expected a number greater than 0 that float32 holds, found {value!r}"
            )
            return 1.0
        return float(value)

    def one_of(self, name: str, known: tuple[Any, ...], default: Any) -> Any:
        """One of some values of JSON; 1 is not true."""
        value = self._values.get(name)
        if value is None:
            return default
        if not any(value == option and type(value) is type(option) for option in known):
            names = ", ".join(map(json.dumps, known))
            self.problems.append(f"{name}: expected one of {names}, found {value!r}")
            return default
        return value

    def longest(self) -> int | None:
        """The most new tokens. Hugging Face's `max_length` counts the start token, too."""
        for name, counted in (("max_new_tokens", 0), ("max_length", 1)):
            if self.states(name):
                return self.number(name, counted + 1, least=counted + 1) - counted
        return None

    def forced(self, name: str, suppressed: set[int]) -> int | None:
        """The token that a setting forces. Of several, all have the same score, and the argmax is
        the lowest that is not suppressed.
        """
        ids = self.ids(name)
        allowed = [token for token in ids if token not in suppressed]
        if ids and not allowed:
            self.problems.append(
                f"{name}: expected a token that suppress_tokens leaves, found {ids}; Hugging "
                "Face's generate refuses it, too"
            )
        return min(allowed, default=None)

    def ids(self, name: str) -> list[int]:
        """Token ids; one may be written without its list."""
        self._ids[name] = self._read_ids(name)
        return self._ids[name]

    def known(self, name: str, vocabulary: int) -> set[int]:
        """Those of some token ids that the vocabulary has: suppressing others changes nothing."""
        return {token for token in self._read_ids(name) if 0 <= token < vocabulary}

    def bad_words(self) -> list[list[int]]:
        """Sequences of tokens."""
        words = self._values.get("bad_words_ids")
        if not words and words in (None, "", {}):
            return []
        if not isinstance(words, list) or not all(
            isinstance(word, list) and word and all(type(token) is int for token in word)
            for word in words
        ):
            self.problems.append(f"bad_words_ids: expected lists of token ids, found {words!r}")
            return []
        self._ids["bad_words_ids"] = [token for word in words for token in word]
        return words

    def ids_outside(self, vocabulary: int) -> list[str]:
        """A problem for each token id read that is not in a vocabulary of this size."""
        return [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name, ids in self._ids.items()
            for token in ids
            if not 0 <= token < vocabulary
        ]

    def _read_ids(self, name: str) -> list[int]:
        value = self._values.get(name)
        ids = value if isinstance(value, list) else [] if value in (None, "", {}) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            self.problems.append(f"{name}: expected token ids, found {value!r}")
            return []
        return ids
