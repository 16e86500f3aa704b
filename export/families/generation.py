"""Generation settings of Hugging Face -> `GenerationConfig`, as `generate` without options.

Defaults are those of `transformers` 5.23 (`GenerationConfig._get_default_generation_params`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dragoman.errors import shown
from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig
from dragoman.reference_model.settings import all_are
from dragoman.settings.fields import Bounds, annotated, is_integer, is_number
from dragoman.settings.generation_settings import (
    POSITIVE_FLOAT32,
    GenerationSettings,
    Part,
    setting_names,
)


class SettingsReader:
    """Reads settings by name, and collects problems, a line each.

    A null setting is missing. The default replaces a wrong value.
    """

    def __init__(self, values: Mapping[str, Any], problems: list[str]) -> None:
        self.values, self.problems = values, problems
        self._ids: dict[str, list[int]] = {}

    def states(self, name: str) -> bool:
        """Return whether a setting has a value."""
        return self.values.get(name) is not None

    def refuse(self, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
        """Add a problem for each unsupported setting that is in force.

        Its values switch it off; null and empty texts, lists and objects also do.
        """
        self.problems += [
            f"{name}: this generation setting is not supported, found {shown(self.values[name])}"
            for name, neutral in unsupported.items()
            if self.values.get(name) not in (None, "", [], {}, *neutral)
        ]

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        """Return an integer of at least `least`."""
        value = self.values.get(name)
        if value is None:
            return default
        if is_integer(value) and value >= least:
            return int(value)
        expected = f"at least {least}" if is_integer(value) else "an integer"
        self.problems.append(f"{name}: expected {expected}, found {shown(value)}")
        return default

    def setting(self, name: str) -> Any:
        """Return a number of `GenerationSettings` by name, within the bounds of that field."""
        default = getattr(GenerationSettings, name)
        bounds = annotated(GenerationSettings, Bounds)[name]
        if isinstance(default, int):
            return self.number(name, default, least=int(bounds.least))
        value = self.values.get(name)
        if value is None:
            return default
        if is_number(value) and bounds.least <= value <= bounds.most:
            return float(value)
        expected = f"a number from {bounds.least:g} to {bounds.most:g}"
        if bounds is POSITIVE_FLOAT32:
            expected = "a number greater than 0 that float32 holds"
        self.problems.append(f"{name}: expected {expected}, found {shown(value)}")
        return default

    def one_of(self, name: str, known: tuple[Any, ...], default: Any) -> Any:
        """Return one of the known JSON values; 1 does not equal true."""
        value = self.values.get(name)
        if value is None:
            return default
        if not any(value == option and type(value) is type(option) for option in known):
            names = ", ".join(map(json.dumps, known))
            self.problems.append(f"{name}: expected one of {names}, found {shown(value)}")
            return default
        return value

    def longest(self) -> int | None:
        """Return the limit of new tokens; Hugging Face's `max_length` includes the start token."""
        for name, counted in (("max_new_tokens", 0), ("max_length", 1)):
            if self.states(name):
                return self.number(name, counted + 1, least=counted + 1) - counted
        return None

    def forced(self, name: str, suppressed: set[int]) -> int | None:
        """Return the token that a setting forces: the lowest one that is not suppressed."""
        ids = self.ids(name)
        allowed = [token for token in ids if token not in suppressed]
        if ids and not allowed:
            self.problems.append(
                f"{name}: expected a token that suppress_tokens leaves, found {shown(ids)}; "
                "Hugging Face's generate refuses it, too"
            )
        return min(allowed, default=None)

    def ids(self, name: str) -> list[int]:
        """Return token ids; a file may state a single one without a list."""
        self._ids[name] = self._read_ids(name)
        return self._ids[name]

    def known(self, name: str, vocabulary: int) -> set[int]:
        """Return the token ids within the vocabulary; suppressing others has no effect."""
        return {token for token in self._read_ids(name) if 0 <= token < vocabulary}

    def bad_words(self) -> list[list[int]]:
        """Return the sequences of tokens that must not be generated."""
        words = self.values.get("bad_words_ids")
        if not words and words in (None, "", {}):
            return []
        if not isinstance(words, list) or not all(
            isinstance(word, list) and word and all_are(int, word) for word in words
        ):
            self.problems.append(
                f"bad_words_ids: expected lists of token ids, found {shown(words)}"
            )
            return []
        self._ids["bad_words_ids"] = [token for word in words for token in word]
        return words

    def ids_outside(self, vocabulary: int) -> list[str]:
        """Return a problem for each token id outside a vocabulary of this size."""
        return [
            f"{name}: expected token ids in [0, {vocabulary}), found {shown(token)}"
            for name, ids in self._ids.items()
            for token in ids
            if not 0 <= token < vocabulary
        ]

    def _read_ids(self, name: str) -> list[int]:
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value in (None, "", {}) else [value]
        if not all_are(int, ids):
            self.problems.append(f"{name}: expected token ids, found {shown(value)}")
            return []
        return ids


DEFAULT_TOP_K = 50

DEFAULT_NEW_TOKENS = 20
"""Hugging Face's limit of new tokens without `max_new_tokens` and `max_length` (`transformers` 5:
`GenerationMixin._prepare_generated_length`)."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1.0,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    **dict.fromkeys(
        ("force_words_ids", "constraints", "watermarking_config", "stop_strings", "max_time"), ()
    ),
    "token_healing": (False,),
    "is_assistant": (False,),
}
"""Settings that change the output of every strategy and are not supported, with the values that
switch them off."""

Unsupported = Mapping[str, tuple[Any, ...]]

GREEDY: Unsupported = {"penalty_alpha": (0,), "dola_layers": ()}
SAMPLING: Unsupported = {
    "dola_layers": (),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0, 1),
    "eta_cutoff": (0, 1),
}
BEAMS: Unsupported = {"num_beam_groups": (1,)}
"""Settings that change the output of one strategy only and are not supported, with the
values that switch it off. `diversity_penalty` has an effect in groups of beams only."""


def generation_config(
    values: Mapping[str, Any], config: ModelConfig, notes: list[str]
) -> GenerationConfig:
    """Return the rules and the strategy that `generate` takes from these settings.

    Notes receive a sentence for each setting with an unexpected effect.
    """
    read = SettingsReader(values, [])
    read.refuse(UNSUPPORTED)
    ends = read.ids("eos_token_id") if read.states("eos_token_id") else None
    words, suppressed = read.bad_words(), read.known("suppress_tokens", config.target_vocab_size)
    # `transformers` ignores a bad word that is an end token, but not a suppressed end token.
    exempt = [config.end_token_id] if ends is None else ends
    single = {word[0] for word in words if len(word) == 1} - set(exempt)
    first = read.forced("forced_bos_token_id", suppressed)
    if first is not None and not config.has_encoder:
        read.problems.append(
            f"forced_bos_token_id: expected none for a decoder-only model, found {first}: Hugging "
            "Face's generate forces it only after a prompt of one token"
        )
    rules = GenerationConfig(
        forced_first_token_id=first,
        forced_last_token_id=read.forced("forced_eos_token_id", suppressed),
        end_token_ids=None if ends in (None, [config.end_token_id]) else tuple(dict.fromkeys(ends)),
        suppressed_token_ids=tuple(sorted(single | suppressed)),
        first_suppressed_token_ids=tuple(
            sorted(read.known("begin_suppress_tokens", config.target_vocab_size))
        ),
        bad_words=tuple(tuple(word) for word in words if len(word) > 1),
        min_length=0 if read.states("min_new_tokens") else read.number("min_length", 0),
        min_new_tokens=read.number("min_new_tokens", 0),
        no_repeat_ngram_size=read.number("no_repeat_ngram_size", 0),
        encoder_no_repeat_ngram_size=read.number("encoder_no_repeat_ngram_size", 0),
        repetition_penalty=read.setting("repetition_penalty"),
        renormalize_logits=read.one_of("renormalize_logits", (True, False), default=False),
        max_new_tokens=read.longest() or _default_new_tokens(config, notes),
    )
    if not config.has_encoder and read.states("max_length") and not read.states("max_new_tokens"):
        notes.append(
            f"max_length counts the tokens of the prompt in Hugging Face's generate; here outputs "
            f"without a limit of the caller's end after {rules.max_new_tokens} new tokens"
        )
    generation = _with_strategy(rules, read, notes)
    problems = [*read.problems, *read.ids_outside(config.target_vocab_size)]
    if generation.num_beams > config.target_vocab_size:
        problems.append(
            f"num_beams: expected at most {config.target_vocab_size}, the vocabulary, found "
            f"{generation.num_beams}"
        )
    if problems:
        raise ConfigError(problems)
    return generation


def _default_new_tokens(config: ModelConfig, notes: list[str]) -> int:
    # The start token takes one of the stored positions.
    limit = max(1, min(DEFAULT_NEW_TOKENS, config.max_target_positions - 1))
    notes.append(
        "the generation settings have neither max_new_tokens nor max_length: outputs end after "
        f"{limit} tokens, as those of Hugging Face's generate, unless the caller says otherwise "
        "(--max-new-tokens)"
    )
    return limit


def _with_strategy(
    rules: GenerationConfig, read: SettingsReader, notes: list[str]
) -> GenerationConfig:
    beams = read.number("num_beams", 1, least=1)
    samples = read.one_of("do_sample", (True, False), default=False)
    if samples and beams > 1:
        notes.append(
            f"the generation settings ask for sampling within {beams} beams, which is not "
            "supported: outputs are those of beam search, and temperature, top_k, top_p and the "
            "like have no effect"
        )
        samples = False
    read.refuse(BEAMS if beams > 1 else SAMPLING if samples else GREEDY)
    returned = read.number("num_return_sequences", 1, least=1)
    if returned > 1:
        notes.append(
            f"the generation settings ask for {returned} outputs for each input "
            "(num_return_sequences): here it is one unless the caller asks for more"
        )
    # Settings without effect in Hugging Face may have any value.
    drawing = read if samples else SettingsReader(read.values, [])
    drawn = {name: drawing.setting(name) for name in setting_names(Part.SAMPLING)}
    if samples and not read.states("top_k"):
        drawn["top_k"] = DEFAULT_TOP_K
    return dataclasses.replace(
        rules,
        num_beams=beams,
        length_penalty=read.setting("length_penalty"),
        early_stopping=read.one_of("early_stopping", (True, False, "never"), default=False),
        do_sample=samples,
        **drawn,
    )
