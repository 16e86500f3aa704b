"""Generation settings of Hugging Face -> rules and strategy of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.reference_model import ConfigError, GenerationConfig, ModelConfig

from .settings_reader import SettingsReader
from .strategy import with_strategy

DEFAULT_NEW_TOKENS = 20
"""The most new tokens at Hugging Face if neither `max_new_tokens` nor `max_length` is stated
(`transformers` 5: `GenerationMixin._prepare_generated_length`)."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1.0,),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "force_words_ids": (),
    "constraints": (),
    "watermarking_config": (),
    "stop_strings": (),
    "max_time": (),
    "token_healing": (False,),
    "is_assistant": (False,),
}
"""Settings that change the output of every strategy and are not supported, with the values that
switch them off."""


def generation_config(
    values: Mapping[str, Any], config: ModelConfig, notes: list[str]
) -> GenerationConfig:
    """What `generate` does without options, by these settings.

    Args:
        values: fields of `generation_config.json` or, if there is none, of `config.json`
        notes: receives a sentence for each setting that has another effect than one might expect

    Raises:
        ConfigError: settings are not supported, or have values of another form; lists them all.
    """
    read = SettingsReader(values, [])
    read.refuse(UNSUPPORTED)
    ends = read.ids("eos_token_id") if read.states("eos_token_id") else None
    words, suppressed = read.bad_words(), read.known("suppress_tokens", config.target_vocab_size)
    # A bad word that is an end token has no effect in `transformers`; a suppressed one has.
    exempt = [config.end_token_id] if ends is None else ends
    single = {word[0] for word in words if len(word) == 1} - set(exempt)
    rules = GenerationConfig(
        forced_first_token_id=read.forced("forced_bos_token_id", suppressed),
        forced_last_token_id=read.forced("forced_eos_token_id", suppressed),
        end_token_ids=_beyond_one(ends, config),
        suppressed_token_ids=tuple(sorted(single | suppressed)),
        first_suppressed_token_ids=tuple(
            sorted(read.known("begin_suppress_tokens", config.target_vocab_size))
        ),
        bad_words=tuple(tuple(word) for word in words if len(word) > 1),
        min_length=0 if read.states("min_new_tokens") else read.number("min_length", 0),
        min_new_tokens=read.number("min_new_tokens", 0),
        no_repeat_ngram_size=read.number("no_repeat_ngram_size", 0),
        encoder_no_repeat_ngram_size=read.number("encoder_no_repeat_ngram_size", 0),
        repetition_penalty=read.positive("repetition_penalty"),
        max_new_tokens=read.longest() or default_new_tokens(config, notes),
    )
    if not config.has_encoder and read.states("max_length") and not read.states("max_new_tokens"):
        notes.append(
            f"max_length counts the tokens of the prompt in Hugging Face's generate; here outputs "
            f"without a limit of the caller's end after {rules.max_new_tokens} new tokens"
        )
    generation = with_strategy(rules, read, notes)
    problems = [*read.problems, *read.ids_outside(config.target_vocab_size)]
    if generation.num_beams > config.target_vocab_size:
        problems.append(
            f"num_beams: expected at most {config.target_vocab_size}, the vocabulary, found "
            f"{generation.num_beams}"
        )
    if problems:
        raise ConfigError(problems)
    return generation


def default_new_tokens(config: ModelConfig, notes: list[str]) -> int:
    """The most new tokens if the settings state none; says so in a note."""
    # Where positions are stored, the start token has one.
    limit = max(1, min(DEFAULT_NEW_TOKENS, config.max_target_positions - 1))
    notes.append(
        "the generation settings have neither max_new_tokens nor max_length: outputs end after "
        f"{limit} tokens, as those of Hugging Face's generate, unless the caller says otherwise "
        "(--max-new-tokens)"
    )
    return limit


def _beyond_one(ends: list[int] | None, config: ModelConfig) -> tuple[int, ...] | None:
    """The end tokens, if they are not just the model's own."""
    return None if ends is None or ends == [config.end_token_id] else tuple(dict.fromkeys(ends))
