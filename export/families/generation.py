"""Generation settings of Hugging Face -> rules of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig
from dragoman.runtime.format.generation_settings import LARGEST_FLOAT32, SMALLEST_FLOAT32

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1.0,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "force_words_ids": (),
    "constraints": (),
    "watermarking_config": (),
    "stop_strings": (),
    "penalty_alpha": (0,),
    "max_time": (),
}
"""Settings that change greedy output and are not supported, with the values (besides null and
empty texts, lists and objects) that switch them off. Settings of sampling and of beam search are
ignored."""


def generation_config(values: Mapping[str, Any], config: ModelConfig) -> GenerationConfig:
    """The rules of greedy decoding that the settings state.

    Args:
        values: fields of `generation_config.json` or, if there is none, of `config.json`

    Raises:
        ConfigError: settings are not supported, or have values of another form; lists them all.
    """
    problems = [
        f"{name}: this generation setting is not supported, found {values[name]!r}"
        for name, neutral in UNSUPPORTED.items()
        if values.get(name) not in (None, "", [], {}, *neutral)
    ]
    read = _Settings(values, problems)
    ends = read.ids("eos_token_id") if values.get("eos_token_id") is not None else None
    words, suppressed = read.bad_words(), read.known("suppress_tokens", config.target_vocab_size)
    # A bad word that is an end token has no effect in `transformers`; a suppressed one has.
    exempt = [config.end_token_id] if ends is None else ends
    single = {word[0] for word in words if len(word) == 1} - set(exempt)
    replaced = values.get("min_new_tokens") is not None
    generation = GenerationConfig(
        forced_first_token_id=read.forced("forced_bos_token_id", suppressed),
        forced_last_token_id=read.forced("forced_eos_token_id", suppressed),
        end_token_ids=_beyond_one(ends, config),
        suppressed_token_ids=tuple(sorted(single | suppressed)),
        first_suppressed_token_ids=tuple(
            sorted(read.known("begin_suppress_tokens", config.target_vocab_size))
        ),
        bad_words=tuple(tuple(word) for word in words if len(word) > 1),
        min_length=0 if replaced else read.number("min_length", 0),
        min_new_tokens=read.number("min_new_tokens", 0),
        no_repeat_ngram_size=read.number("no_repeat_ngram_size", 0),
        encoder_no_repeat_ngram_size=read.number("encoder_no_repeat_ngram_size", 0),
        repetition_penalty=read.penalty("repetition_penalty"),
        max_new_tokens=read.longest(),
    )
    problems += read.ids_outside(config.target_vocab_size)
    if problems:
        raise ConfigError(problems)
    return generation


def _beyond_one(ends: list[int] | None, config: ModelConfig) -> tuple[int, ...] | None:
    """The end tokens, if they are not just the model's own."""
    return None if ends is None or ends == [config.end_token_id] else tuple(dict.fromkeys(ends))


class _Settings:
    """Typed access to settings by name; problems with their values are added to `problems`."""

    def __init__(self, values: Mapping[str, Any], problems: list[str]) -> None:
        self._values, self._problems = values, problems
        self._ids: dict[str, list[int]] = {}

    def number(self, name: str, default: int) -> int:
        """An integer of at least 0."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self._problems.append(f"{name}: expected an integer, found {value!r}")
            return default
        if value < 0:
            self._problems.append(f"{name}: expected at least 0, found {value}")
            return default
        return value

    def longest(self) -> int | None:
        """The most new tokens. Hugging Face's `max_length` counts the start token, too."""
        for name, counted in (("max_new_tokens", 0), ("max_length", 1)):
            if self._values.get(name) is not None:
                found = self.number(name, counted + 1)
                if found <= counted:
                    self._problems.append(f"{name}: expected at least {counted + 1}, found {found}")
                return found - counted
        return None

    def penalty(self, name: str) -> float:
        """A positive number within float32; 1 changes nothing."""
        value = self._values.get(name)
        if value is None:
            return 1.0
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not SMALLEST_FLOAT32 <= value <= LARGEST_FLOAT32:
            self._problems.append(
                f"{name}: expected a number greater than 0 that float32 holds, found {value!r}"
            )
            return 1.0
        return float(value)

    def forced(self, name: str, suppressed: set[int]) -> int | None:
        """The token that a setting forces. Of several, all have the same score, and the argmax is
        the lowest that is not suppressed."""
        ids = self.ids(name)
        allowed = [token for token in ids if token not in suppressed]
        if ids and not allowed:
            self._problems.append(
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

    def _read_ids(self, name: str) -> list[int]:
        value = self._values.get(name)
        ids = value if isinstance(value, list) else [] if value in (None, "", {}) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            self._problems.append(f"{name}: expected token ids, found {value!r}")
            return []
        return ids

    def bad_words(self) -> list[list[int]]:
        """Sequences of tokens."""
        words = self._values.get("bad_words_ids")
        if not words and words in (None, "", {}):
            return []
        if not isinstance(words, list) or not all(
            isinstance(word, list) and word and all(type(token) is int for token in word)
            for word in words
        ):
            self._problems.append(f"bad_words_ids: expected lists of token ids, found {words!r}")
            return []
        self._ids["bad_words_ids"] = [token for word in words for token in word]
        return words

    def ids_outside(self, vocabulary: int) -> list[str]:
        """A problem for each token id that is not in a vocabulary of this size."""
        return [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name, ids in self._ids.items()
            for token in ids
            if not 0 <= token < vocabulary
        ]
