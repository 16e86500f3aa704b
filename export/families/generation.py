"""Generation settings of Hugging Face -> rules of decoding."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1, 0),
    "force_words_ids": (),
    "constraints": (),
    "watermarking_config": (),
    "stop_strings": (),
    "penalty_alpha": (0,),
}
"""Settings that change greedy output and are not supported, with the values (besides null) that
switch them off. Settings of sampling and of beam search are ignored."""


def generation_config(values: Mapping[str, Any], config: ModelConfig) -> GenerationConfig:
    """The rules of greedy decoding that the settings state.

    Args:
        values: fields of `generation_config.json` or, if there is none, of `config.json`

    Raises:
        ConfigError: settings are not supported, or have values of another form; lists them all.
    """
    problems = [
        f"{name}: this generation setting is not supported, found {values[name]!r}"
        for name, neutral in NEUTRAL.items()
        if values.get(name) is not None and values[name] not in neutral
    ]
    read = _Settings(values, problems)
    # A bad word that is the end token has no effect in `transformers`; a suppressed one has.
    suppressed = {*read.bad_words()} - {config.end_token_id} | {*read.ids("suppress_tokens")}
    # Hugging Face's min_length and max_length count the start token.
    longest = read.number("max_length", 0) - 1
    generation = GenerationConfig(
        forced_first_token_id=read.token("forced_bos_token_id"),
        forced_last_token_id=read.token("forced_eos_token_id"),
        suppressed_token_ids=tuple(sorted(suppressed)),
        first_suppressed_token_ids=tuple(sorted(set(read.ids("begin_suppress_tokens")))),
        min_new_tokens=max(read.number("min_new_tokens", 0), read.number("min_length", 0) - 1, 0),
        no_repeat_ngram_size=read.number("no_repeat_ngram_size", 0),
        repetition_penalty=read.penalty("repetition_penalty"),
        max_new_tokens=read.number("max_new_tokens", 0) or (longest if longest > 0 else None),
    )
    problems += read.ids_outside(config.target_vocab_size)
    if problems:
        raise ConfigError(problems)
    return generation


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

    def penalty(self, name: str) -> float:
        """A positive, finite number; 1 changes nothing."""
        value = self._values.get(name)
        if value is None:
            return 1.0
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= sys.float_info.max:
            self._problems.append(f"{name}: expected a number greater than 0, found {value!r}")
            return 1.0
        return float(value)

    def token(self, name: str) -> int | None:
        """One token id, which may be written as a list of one."""
        ids = self.ids(name)
        if len(set(ids)) > 1:
            self._problems.append(f"{name}: expected one token, found {ids}")
        return ids[0] if ids else None

    def ids(self, name: str) -> list[int]:
        """Token ids; one may be written without its list."""
        value = self._values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            self._problems.append(f"{name}: expected token ids, found {value!r}")
            return []
        self._ids[name] = ids
        return ids

    def bad_words(self) -> list[int]:
        """The tokens of bad words, which must be single tokens: longer words are not supported."""
        words = self._values.get("bad_words_ids")
        if words is None:
            return []
        if not isinstance(words, list) or not all(
            isinstance(word, list) and len(word) == 1 and type(word[0]) is int for word in words
        ):
            self._problems.append(f"bad_words_ids: expected words of one token, found {words!r}")
            return []
        self._ids["bad_words_ids"] = [word[0] for word in words]
        return self._ids["bad_words_ids"]

    def ids_outside(self, vocabulary: int) -> list[str]:
        """A problem for each token id that is not in a vocabulary of this size."""
        return [
            f"{name}: expected token ids in [0, {vocabulary}), found {token}"
            for name, ids in self._ids.items()
            for token in ids
            if not 0 <= token < vocabulary
        ]
