"""Whisper (Radford et al. 2022) and Distil-Whisper.

The model is a pre-norm BART whose encoder takes log-mel features, with positions stored on both
sides and keys without a bias. The tokenizer encodes the texts of prompts only. Generation settings
for long audio are ignored (`no_speech_threshold`, ...).
"""
# ruff: noqa: SIM905

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from dragoman.errors import shown
from dragoman.files.regular_files import VOCABULARY_BYTES
from dragoman.reference_model import CheckpointError, ConfigError, GenerationConfig, ModelConfig
from dragoman.reference_model.settings import all_are
from dragoman.runtime.audio import LogMel
from dragoman.runtime.speech.prompts import CODES, language_code
from dragoman.settings.speech import SpeechTokens

from ..formats.contents import FEATURES
from ..formats.json_files import Values, read_json, read_json_if_present
from ..formats.tensor_files import Weights
from ..tokenizers import TokenizerCheckpoint, TokenizerFiles, TokenizerKind
from ..tokenizers.classes import GPT2
from ..tokenizers.kind import byte_level
from ..tokenizers.tiktoken import GPT2_PATTERN, Encoding, tokenizer_of_ranks
from .bart import SETTINGS, config_of
from .bart import weight_name as bart_weight_name
from .family import Family, merge_tied, renamed, with_defaults
from .generation import SettingsReader, generation_config

DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "d_model": 384,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "dropout": 0.0,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "pad_token_id": 50256,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "decoder_start_token_id": 50257,
}
"""Defaults of missing fields of `config.json`."""

CONVOLUTIONS: Mapping[str, str] = {
    "embedding.first_convolution": "conv1",
    "embedding.second_convolution": "conv2",
}
OUTPUT = "proj_out.weight"
TOKENS = "model.decoder.embed_tokens.weight"


def _weight_name(name: str) -> str:
    return OUTPUT if name == "output.weight" else bart_weight_name(renamed(name, CONVOLUTIONS))


def _config(values: Values) -> ModelConfig:
    known = with_defaults(values, DEFAULTS)
    return config_of(
        values,
        DEFAULTS,
        source_vocab_size=None,
        feature_size=known["num_mel_bins"],
        tie_source_target=False,
        norm_order="pre",
        scale_embedding=False,  # Hugging Face ignores the field
        key_bias=False,
        max_source_positions=known["max_source_positions"],
        max_target_positions=known["max_target_positions"],
    )


def _convert_weights(weights: Weights, config: ModelConfig) -> list[str]:
    return merge_tied(weights, [TOKENS, OUTPUT]) if config.tie_target_output else []


TASKS = ("transcribe", "translate")
SAMPLING = ("do_sample", "temperature")
"""Settings that Whisper's `generate` ignores, since it takes them as options only."""
LIMITS = ("max_new_tokens", "max_length")
"""Settings of the length limit, which excludes the prompt; the first takes precedence."""
NO_TIMESTAMPS = "<|notimestamps|>"
MULTILINGUAL_VOCAB_SIZE = 51865
"""The smallest multilingual vocabulary; smaller models are English-only."""


def generation(
    directory: Path, settings: Values, config: ModelConfig, notes: list[str]
) -> GenerationConfig:
    """Read the rules and the strategy of decoding, the tokens of prompts, and a default prompt.

    Notes receive a sentence for each setting with an unexpected effect, and if prompts differ from
    those of Hugging Face's `generate`.
    """
    problems: list[str] = []
    read = SettingsReader(settings, problems)
    stated = (read.number(name, 1, least=1) for name in LIMITS if read.states(name))
    others = {n: v for n, v in settings.items() if n not in (*LIMITS, *SAMPLING)}
    others["max_new_tokens"] = next(stated, None)
    rules = generation_config(others, config, notes)
    _check_features(directory, config, notes)
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
        problems.append(f"return_timestamps: expected true or false, found {shown(timestamps)}")
    elif timestamps and no_timestamps is None:
        problems.append("return_timestamps: the model has no timestamps (no_timestamps_token_id)")
    speech = SpeechTokens(
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
    """Read the layer and the head of each cross-attention that times words.

    If the decoder lacks some of them, none is used, as a note says.
    """
    stated = settings.get("alignment_heads") or []
    if not isinstance(stated, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all_are(int, pair) and min(pair) >= 0
        for pair in stated
    ):
        problems.append(
            f"alignment_heads: expected pairs of layer and head, from 0 on, found {shown(stated)}"
        )
        return ()
    layers, heads = config.decoder_layers, config.num_heads
    # Distilled models have the settings of the teacher. Only word timestamps need these heads.
    if not all(layer < layers and head < heads for layer, head in stated):
        notes.append(
            f"alignment_heads: the decoder has {layers} layers of {heads} heads, and the settings "
            "name others: alignments of words are made from the last layer but one"
        )
        return ()
    return tuple((layer, head) for layer, head in stated)


def with_prompt(rules: GenerationConfig, speech: SpeechTokens, positions: int) -> GenerationConfig:
    """Add a default prompt to the rules, and limit outputs to the positions after it."""
    prompt = _prompt(speech)
    room = positions - 1 - len(prompt)
    limit = min(rules.max_new_tokens or room, room)
    return dataclasses.replace(rules, speech=speech, prompt=prompt, max_new_tokens=limit)


def _check_features(directory: Path, config: ModelConfig, notes: list[str]) -> None:
    """Compare the features of a checkpoint, if it states them, with those of the runtime.

    They are in `preprocessor_config.json` or, since transformers 5, in `processor_config.json`.
    """
    path = directory / "preprocessor_config.json"
    stated: Values = read_json_if_present(path)
    if not path.exists():
        path = directory / "processor_config.json"
        stated = read_json_if_present(path).get("feature_extractor") or {}
    computed = LogMel()
    expected = {
        "feature_size": config.feature_size,
        "sampling_rate": computed.sampling_rate,
        "n_fft": computed.n_fft,
        "hop_length": computed.hop,
    }
    problems = [
        f"{name}: expected {value}, found {shown(stated[name])}"
        for name, value in expected.items()
        if stated.get(name, value) != value
    ]
    problems += FEATURES.unsupported(stated)
    if problems:
        raise CheckpointError(path, problems)
    notes += FEATURES.notes(path.name, stated)


def _special_tokens(directory: Path) -> dict[str, int]:
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
    # Without these settings, the tokenizer and the size of the vocabulary determine the tokens.
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
        if not isinstance(table, dict) or not all_are(int, table.values()):
            problems.append(f"{name}: expected an object of token ids, found {shown(table)}")
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
    """Return language and task as stated; if neither is, those in `forced_decoder_ids`."""
    language, task = settings.get("language"), settings.get("task")
    if language is None and task is None:
        forced = settings.get("forced_decoder_ids") or []
        if not isinstance(forced, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in forced
        ):
            problems.append(f"forced_decoder_ids: expected pairs, found {shown(forced)}")
            forced = []
        tokens = [token for _, token in forced]
        language = next((code for code, token in languages.items() if token in tokens), None)
        task = next((name for name, token in tasks.items() if token in tokens), None)
    if language is not None:
        language = language_code(str(language))
    for name, value, known in (("language", language, languages), ("task", task, tasks)):
        if value is not None and known and (not isinstance(value, str) or value not in known):
            problems.append(f"{name}: expected one of {', '.join(known)}, found {shown(value)}")
    return (language if languages else None), (task if tasks else None)


def _prompt(speech: SpeechTokens) -> tuple[int, ...]:
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
    problems.append(f"{name}: expected an integer of at least 0, found {shown(value)}")
    return None


_TIMESTAMP = re.compile(r"<\|\d+\.\d+\|>")
_RANKS = {"gpt2": 50_256, "multilingual": 50_257}
"""The number of ranks in the files of OpenAI's implementation."""
_LANGUAGES = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr
bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn
yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su
yue
""".split()
"""Languages in the order of their tokens. Models before large-v3 lack the last."""
_AFTER_LANGUAGES = [
    *"translate transcribe startoflm startofprev nospeech notimestamps".split(),
    *(f"{i * 0.02:.2f}" for i in range(1501)),
]


def hide_timestamps(tokenizer: Tokenizer) -> Tokenizer:
    """Make the timestamps special tokens, which decoding skips, as in `transformers`."""
    listed = tokenizer.get_added_tokens_decoder().values()
    tokenizer.add_special_tokens(
        [
            AddedToken(token.content, special=True, normalized=False)
            for token in listed
            if _TIMESTAMP.fullmatch(token.content)
        ]
    )
    return tokenizer


def _library_file(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    if checkpoint.library is None:
        return None
    tokenizer = checkpoint.assembled()
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = checkpoint.library
    return TokenizerFiles(
        None, hide_timestamps(tokenizer), cleans_up=checkpoint.cleans_up(tokenizer)
    )


def _merges(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    tokenizer = byte_level(checkpoint, GPT2)
    return None if tokenizer is None else TokenizerFiles(None, hide_timestamps(tokenizer))


def _ranks(checkpoint: TokenizerCheckpoint) -> TokenizerFiles | None:
    encodings = {name: _encoding(size, checkpoint.vocab_size) for name, size in _RANKS.items()}
    tokenizer = tokenizer_of_ranks(checkpoint, encodings)
    return None if tokenizer is None else TokenizerFiles(None, hide_timestamps(tokenizer))


def _encoding(size: int, vocab_size: int) -> Encoding:
    """Return the encoding of ranks, whose special tokens follow the ranks.

    The vocabulary's size shows the number of languages; for others, the checkpoint lists them.
    """
    for languages in (_LANGUAGES[:-1], _LANGUAGES):
        names = ("endoftext", "startoftranscript", *languages, *_AFTER_LANGUAGES)
        if size + len(names) == vocab_size:
            tokens = {f"<|{name}|>": token for token, name in enumerate(names, start=size)}
            return Encoding(GPT2_PATTERN, size, tokens)
    return Encoding(GPT2_PATTERN, size)


TOKENIZER = TokenizerKind(("WhisperTokenizer",), (_library_file, _merges, _ranks), any_class=True)


WHISPER = Family(
    config=_config,
    weight_name=_weight_name,
    convert_weights=_convert_weights,
    tokenizers=(TOKENIZER,),
    generation=generation,
    settings=SETTINGS | DEFAULTS.keys(),
    tables=(TOKENS, OUTPUT),
)
