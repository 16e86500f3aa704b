"""Whisper's generation settings at Hugging Face -> rules of decoding, and what prompts are made of.

Ignored is what `generate` does for long audio beyond greedy decoding (`no_speech_threshold`, ...).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.reference_model import (
    CheckpointError,
    ConfigError,
    GenerationConfig,
    ModelConfig,
    Speech,
)
from dragoman.regular_files import VOCABULARY_BYTES
from dragoman.runtime.audio import LogMel
from dragoman.runtime.speech.language_names import CODES, language_code

from ...formats.json_files import Values, read_json
from ..generation import generation_config
from ..settings_reader import SettingsReader

TASKS = ("transcribe", "translate")
SAMPLING = ("do_sample", "temperature")
"""What its `generate` takes as options only, whatever the settings say."""
LIMITS = ("max_new_tokens", "max_length")
"""Neither counts the tokens of the prompt at Hugging Face; the first takes precedence."""
NO_TIMESTAMPS = "<|notimestamps|>"
MULTILINGUAL_VOCAB_SIZE = 51865
"""Models of fewer tokens know only English, though their tokenizers have tokens for languages."""


def generation(
    directory: Path, settings: Values, config: ModelConfig, notes: list[str]
) -> GenerationConfig:
    """Rules and strategy of decoding, with the tokens of prompts and one of the model's prompts.

    Args:
        settings: fields of `generation_config.json` or, if there is none, of `config.json`
        notes: receives a sentence for each setting that has another effect than one might expect,
            and if prompts are other than those of Hugging Face's `generate`

    Raises:
        CheckpointError: the model was trained on features other than the runtime computes.
        ConfigError: settings are not supported, or have values of another form; lists them all.
    """
    problems: list[str] = []
    read = SettingsReader(settings, problems)
    stated = (read.number(name, 1, least=1) for name in LIMITS if read.states(name))
    others = {n: v for n, v in settings.items() if n not in (*LIMITS, *SAMPLING)}
    others["max_new_tokens"] = next(stated, None)
    rules = generation_config(others, config, notes)
    check_features(directory, config)
    vocabulary = _special_tokens(directory)
    languages, tasks = _languages_and_tasks(settings, vocabulary, config, problems)
    no_timestamps = _count(settings, "no_timestamps_token_id", problems)
    if no_timestamps is None and (no_timestamps := vocabulary.get(NO_TIMESTAMPS)) is not None:
        notes.append(
            "the generation settings have no no_timestamps_token_id: prompts are made of the "
            "tokenizer's tokens, as Whisper was trained with; Hugging Face's generate makes them "
            "of what the settings force"
        )
    language, task = _defaults(settings, languages, tasks, problems)
    timestamps = settings.get("return_timestamps")
    if timestamps not in (None, False, True):
        problems.append(f"return_timestamps: expected true or false, found {timestamps!r}")
    elif timestamps and no_timestamps is None:
        problems.append("return_timestamps: the model has no timestamps (no_timestamps_token_id)")
    speech = Speech(
        languages=languages,
        tasks=tasks,
        no_timestamps_token_id=no_timestamps,
        max_initial_timestamp_index=_count(settings, "max_initial_timestamp_index", problems),
        default_language=language,
        default_task=task,
        default_timestamps=timestamps is True,
    )
    heads = alignment_heads(settings, config, problems, notes)
    rules = dataclasses.replace(rules, alignment_heads=heads)
    if problems:
        raise ConfigError(problems)
    return with_prompt(rules, speech, config.max_target_positions)


def alignment_heads(
    settings: Values, config: ModelConfig, problems: list[str], notes: list[str]
) -> tuple[tuple[int, int], ...]:
    """Layer and head of each cross-attention that times words.

    Args:
        problems: receives one if the setting has another form
        notes: receives a sentence if the decoder has not all of these heads; then there are none
    """
    stated = settings.get("alignment_heads") or []
    if not isinstance(stated, list) or not all(map(_is_head, stated)):
        problems.append(
            f"alignment_heads: expected pairs of layer and head, from 0 on, found {stated!r:.60}"
        )
        return ()
    layers, heads = config.decoder_layers, config.num_heads
    # Distilled models are published with their teacher's settings; nothing else needs these heads.
    if not all(layer < layers and head < heads for layer, head in stated):
        notes.append(
            f"alignment_heads: the decoder has {layers} layers of {heads} heads, and the settings "
            "name others: alignments of words are made from the last layer but one"
        )
        return ()
    return tuple((layer, head) for layer, head in stated)


def _is_head(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return all(type(number) is int and number >= 0 for number in pair)


def with_prompt(rules: GenerationConfig, speech: Speech, positions: int) -> GenerationConfig:
    """The rules with one of the model's prompts, and with output no longer than fits behind it.

    Args:
        positions: of the decoder; the start token, the prompt and the output share them
    """
    prompt = _prompt(speech)
    room = positions - 1 - len(prompt)
    limit = min(rules.max_new_tokens or room, room)
    return dataclasses.replace(rules, speech=speech, prompt=prompt, max_new_tokens=limit)


def check_features(directory: Path, config: ModelConfig) -> None:
    """Compare `preprocessor_config.json`, if there is one, with the features that are computed.

    Raises:
        CheckpointError: the model was trained on others, or the file is no JSON object.
    """
    path = directory / "preprocessor_config.json"
    if not path.exists():
        return
    stated = read_json(path)
    computed = LogMel()
    expected = {
        "feature_size": config.feature_size,
        "sampling_rate": computed.sampling_rate,
        "n_fft": computed.n_fft,
        "hop_length": computed.hop,
    }
    problems = [
        f"{name}: expected {value}, found {stated[name]!r}"
        for name, value in expected.items()
        if stated.get(name, value) != value
    ]
    if problems:
        raise CheckpointError(path, problems)


def _special_tokens(directory: Path) -> dict[str, int]:
    """The added tokens of `tokenizer.json`, for settings too old to name them; {} without it."""
    path = directory / "tokenizer.json"
    if not path.exists():
        return {}
    try:
        added = read_json(path, limit=VOCABULARY_BYTES)["added_tokens"]
        return {token["content"]: token["id"] for token in added}
    except (KeyError, TypeError) as error:
        raise CheckpointError(path, ["expected a tokenizer with added_tokens"]) from error


def _languages_and_tasks(
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    config: ModelConfig,
    problems: list[str],
) -> tuple[dict[str, int], dict[str, int]]:
    """The tokens of languages, by code, and of tasks; none for a model that knows only English."""
    # Older settings leave all of this to the tokenizer and to the size of the vocabulary.
    older = "is_multilingual" not in settings
    multilingual = (
        config.target_vocab_size >= MULTILINGUAL_VOCAB_SIZE
        if older
        else settings["is_multilingual"]
    )
    if not multilingual:
        return {}, {}
    language_tokens = {f"<|{code}|>" for code in CODES.values()}
    tables: list[dict[str, int]] = []
    for name, fallback in (
        ("lang_to_id", {t: token for t, token in vocabulary.items() if t in language_tokens}),
        ("task_to_id", {t: vocabulary[f"<|{t}|>"] for t in TASKS if f"<|{t}|>" in vocabulary}),
    ):
        table = settings.get(name, fallback if older else {})
        if not isinstance(table, dict) or not all(type(token) is int for token in table.values()):
            problems.append(f"{name}: expected an object of token ids, found {table!r}")
            table = {}
        tables.append(table)
    languages, tasks = tables
    return {language_code(name): token for name, token in languages.items()}, tasks


def _defaults(
    settings: Mapping[str, Any],
    languages: Mapping[str, int],
    tasks: Mapping[str, int],
    problems: list[str],
) -> tuple[str | None, str | None]:
    """Language and task as stated; if neither is, those whose tokens `forced_decoder_ids` has."""
    language, task = settings.get("language"), settings.get("task")
    if language is None and task is None:
        forced = settings.get("forced_decoder_ids") or []
        if not isinstance(forced, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in forced
        ):
            problems.append(f"forced_decoder_ids: expected pairs, found {forced!r}")
            forced = []
        tokens = [token for _, token in forced]
        language = next((code for code, token in languages.items() if token in tokens), None)
        task = next((name for name, token in tasks.items() if token in tokens), None)
    if language is not None:
        language = language_code(str(language))
    for name, value, known in (("language", language, languages), ("task", task, tasks)):
        if value is not None and known and (not isinstance(value, str) or value not in known):
            problems.append(f"{name}: expected one of {', '.join(known)}, found {value!r}")
    return (language if languages else None), (task if tasks else None)


def _prompt(speech: Speech) -> tuple[int, ...]:
    """A prompt in the default language or English, without timestamps."""
    tokens = []
    if speech.languages:
        fallback = "en" if "en" in speech.languages else next(iter(speech.languages))
        tokens.append(speech.languages[speech.default_language or fallback])
    task = speech.default_task or ("transcribe" if "transcribe" in speech.tasks else None)
    if task is not None:
        tokens.append(speech.tasks[task])
    if speech.no_timestamps_token_id is not None:
        tokens.append(speech.no_timestamps_token_id)
    return tuple(tokens)


def _count(settings: Mapping[str, Any], name: str, problems: list[str]) -> int | None:
    value = settings.get(name)
    if value is None or (type(value) is int and value >= 0):
        return value
    problems.append(f"{name}: expected an integer of at least 0, found {value!r}")
    return None
