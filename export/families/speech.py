"""Generation settings of Hugging Face -> what prompts of a speech model are made of.

What `generate` does with long audio beyond greedy decoding (`no_speech_threshold`, ...) and with
the times of words (`alignment_heads`) is passed over.
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
from dragoman.runtime.audio import LogMel
from dragoman.runtime.speech.language_names import CODES, language_code

from .json_files import read_json

TASKS = ("transcribe", "translate")
NO_TIMESTAMPS = "<|notimestamps|>"
MULTILINGUAL_SIZE = 51865
"""Whisper models of fewer tokens know English only, whatever tokens they have for languages."""


def with_speech(
    generation: GenerationConfig,
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    config: ModelConfig,
) -> GenerationConfig:
    """The rules of a speech model: with what its prompts are made of, and one of them.

    Args:
        settings: of `generation_config.json` or, where there is none, of `config.json`
        vocabulary: special tokens of the tokenizer, for settings too old to name them

    Raises:
        ConfigError: a setting is not what it should be; all are listed.
    """
    problems: list[str] = []
    languages, tasks = _tokens(settings, vocabulary, config, problems)
    last = _count(settings, "no_timestamps_token_id", problems)
    if last is None:
        last = vocabulary.get(NO_TIMESTAMPS)
    language, task = _defaults(settings, languages, tasks, problems)
    if (timestamps := settings.get("return_timestamps")) not in (None, False):
        problems.append(
            f"return_timestamps: as a default this is not supported, found {timestamps!r}"
        )
    speech = Speech(
        languages=languages,
        tasks=tasks,
        no_timestamps_token_id=last,
        max_initial_timestamp_index=_count(settings, "max_initial_timestamp_index", problems),
        default_language=language,
        default_task=task,
    )
    limits = [_count(settings, name, problems) for name in ("max_new_tokens", "max_length")]
    if problems:
        raise ConfigError(problems)
    # At Hugging Face the prompt does not count.
    longest = limits[0] or limits[1] or config.max_target_positions
    generation = dataclasses.replace(generation, max_new_tokens=longest)
    return prompted(generation, speech, config.max_target_positions)


def prompted(generation: GenerationConfig, speech: Speech, positions: int) -> GenerationConfig:
    """With one of the prompts that a speech model has, and no more new tokens than that leaves room
    for among its positions: with the start token, all of them."""
    prompt = _prompt(speech)
    room = positions - 1 - len(prompt)
    limit = min(generation.max_new_tokens or room, room)
    return dataclasses.replace(generation, speech=speech, prompt=prompt, max_new_tokens=limit)


def special_tokens(directory: Path) -> dict[str, int]:
    """The added tokens of `tokenizer.json`, where there is one."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return {}
    try:
        added = read_json(path)["added_tokens"]
        return {token["content"]: token["id"] for token in added}
    except (KeyError, TypeError) as error:
        raise CheckpointError(path, ["expected a tokenizer with added_tokens"]) from error


def check_features(directory: Path, config: ModelConfig) -> None:
    """Compare `preprocessor_config.json`, where there is one, with the features that are made.

    Raises:
        CheckpointError: the model was trained on others, or the file is no JSON object.
    """
    path = directory / "preprocessor_config.json"
    if not path.is_file():
        return
    stated = read_json(path)
    made = LogMel()
    expected = {
        "feature_size": config.feature_size,
        "sampling_rate": made.sampling_rate,
        "n_fft": made.n_fft,
        "hop_length": made.hop,
    }
    problems = [
        f"{name}: expected {value}, found {stated[name]!r}"
        for name, value in expected.items()
        if stated.get(name, value) != value
    ]
    if problems:
        raise CheckpointError(path, problems)


def _tokens(
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    config: ModelConfig,
    problems: list[str],
) -> tuple[dict[str, int], dict[str, int]]:
    """The tokens of languages, by code, and of tasks; none for a model of English alone."""
    old = "is_multilingual" not in settings
    # The tokenizers of English models have the tokens of all languages, too.
    several = config.target_vocab_size >= MULTILINGUAL_SIZE if old else settings["is_multilingual"]
    if not several:
        return {}, {}
    known = {f"<|{code}|>": code for code in CODES.values()}
    given: list[dict[str, int]] = []
    for name, fallback in (
        ("lang_to_id", {token: i for token, i in vocabulary.items() if token in known}),
        ("task_to_id", {t: vocabulary[f"<|{t}|>"] for t in TASKS if f"<|{t}|>" in vocabulary}),
    ):
        value = settings.get(name, fallback if old else {})
        if not isinstance(value, dict) or not all(type(token) is int for token in value.values()):
            problems.append(f"{name}: expected an object of token ids, found {value!r}")
            value = {}
        given.append(value)
    languages, tasks = given
    return {language_code(name): token for name, token in languages.items()}, tasks


def _defaults(
    settings: Mapping[str, Any],
    languages: Mapping[str, int],
    tasks: Mapping[str, int],
    problems: list[str],
) -> tuple[str | None, str | None]:
    """Language and task: as stated or, where neither is, as the tokens of `forced_decoder_ids`."""
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
    """One of the model's prompts: in its language or English, without timestamps."""
    tokens = []
    if speech.languages:
        some = speech.default_language or next(iter(speech.languages))
        if speech.default_language is None and "en" in speech.languages:
            some = "en"
        tokens.append(speech.languages[some])
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
