"""Models of CTranslate2 that translate text: vocabularies, tokenizers, special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from dragoman.errors import DragomanError, shown
from dragoman.reference_model import CheckpointError, GenerationConfig
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ...formats.ctranslate2 import ModelFile, Vocabulary, read_vocabulary
from ...formats.detection import CONFIG_FILE
from ...formats.json_files import Values
from ...formats.tensor_files import Weights
from ...tokenizers import PieceModel, TokenizerCheckpoint, TokenizerFiles
from ...tokenizers.files import LIBRARY_FILE, all_present, check_has_tokens
from ...tokenizers.multilingual import Multilingual
from ..bart import LANGUAGES_25, LANGUAGES_50
from ..m2m_100 import M2M_100_LANGUAGES, NLLB_LANGUAGES, check_width, position_table
from .stored_model import (
    LOGITS_BIAS,
    NO_ROWS,
    PROJECTION,
    SOURCE_TABLE,
    TARGET_TABLE,
    Fields,
    Rows,
    Specification,
    StoredModel,
    merge_equal,
    token_ids,
)

COMPUTED_POSITIONS = 1024
"""The number of computed positions if none are stored; CTranslate2 computes them on demand."""


def _text_tokens(
    directory: Path, file: ModelFile, values: Mapping[str, Any], rows: Rows
) -> tuple[Fields, dict[str, int]]:
    """Find the special tokens of a text model, and the sizes of its vocabularies by their tables.

    The padding token is chosen from both vocabularies, since CTranslate2 has none. The start token
    is the end token if each input states another one (mBART-25).
    """
    settings = values if file.version >= 6 else old_settings(file)
    unknown = settings.get("unk_token", "<unk>")
    if not isinstance(unknown, str):
        raise CheckpointError(
            directory / CONFIG_FILE, [f"unk_token: expected a string, found {shown(unknown)}"]
        )
    source, target = _read_vocabularies(directory, rows, unknown)
    if source is None or target is None:
        raise CheckpointError(
            directory,
            [
                "expected shared_vocabulary.json, or source_vocabulary.json and "
                "target_vocabulary.json (or .txt), found none"
            ],
        )
    end, start = settings.get("eos_token", "</s>"), settings.get("decoder_start_token", "<s>")
    start, end = token_ids(directory, target, end if start is None else start, end)
    both = range(min(len(source), len(target)))
    padding = (source.index(token) for token in ("<pad>", "<blank>") if token in source)
    pad = next((token for token in padding if token in both), end if end in both else 0)
    tokens: Fields = {"start_token_id": start, "end_token_id": end, "pad_token_id": pad}
    return tokens, {SOURCE_TABLE: len(source), TARGET_TABLE: len(target)}


def old_settings(file: ModelFile) -> dict[str, Any]:
    """Return the fields of `config.json` that files before version 6 store as variables."""
    begin, end = file.texts.get("bos_token", "<s>"), file.texts.get("eos_token", "</s>")
    start = begin if file.options.get("with_target_bos", 1) else end
    return {
        "unk_token": file.texts.get("unk_token", "<unk>"),
        "bos_token": begin,
        "eos_token": end,
        "add_source_bos": bool(file.options.get("with_source_bos", 0)),
        "add_source_eos": bool(file.options.get("with_source_eos", 0)),
        "decoder_start_token": None if file.options.get("user_decoder_start_tokens") else start,
    }


def _describe(stored: StoredModel) -> tuple[Fields, GenerationConfig]:
    weights = stored.weights
    fields, sizes = _text_tokens(stored.directory, stored.file, stored.values, stored.rows)
    for table, size in sizes.items():
        if (rows := stored.shape(table, 2)[0]) != size:
            stored.problems.append(
                f"{table} has {rows} rows and its vocabulary {size} tokens, expected equal numbers"
            )
    fields["scale_embedding"] = stored.scales_by_sqrt_depth()
    rules = GenerationConfig()
    if stored.option("decoder", "start_from_zero_embedding", 0):
        fields["start_token_id"] = start = len(weights[TARGET_TABLE])
        rules = GenerationConfig(suppressed_token_ids=(start,))
        _add_zero_token(weights)
        if len(weights[SOURCE_TABLE]) > start:
            fields["pad_token_id"] = start
    d_model = stored.shape(TARGET_TABLE, 2)[1]
    for stack in ("encoder", "decoder"):
        name = f"{stack}/position_encodings/encodings"
        if name not in weights:
            check_width(d_model)
            weights[name] = position_table(1, COMPUTED_POSITIONS, d_model)
    fields["source_vocab_size"] = len(weights[SOURCE_TABLE])
    fields["tie_source_target"] = merge_equal(weights, SOURCE_TABLE, TARGET_TABLE)
    return fields, rules


ABSENT_LOGIT = -30.0
"""The logit of the added start token, relative to the mean bias: e^-30 is far below the rounding of
probabilities, and the number far below the largest logits, by which differences are measured."""


def _add_zero_token(weights: Weights) -> None:
    """Add the start token, which the conversion of a Marian model removes; it is zeros."""
    names = [TARGET_TABLE, PROJECTION]
    if weights[SOURCE_TABLE].equal(weights[TARGET_TABLE]):
        names.append(SOURCE_TABLE)
    rows = len(weights[TARGET_TABLE])
    for name in names:
        if name in weights:
            table = weights[name]
            weights[name] = torch.cat([table, table.new_zeros(1, *table.shape[1:])])
    bias = weights.get(LOGITS_BIAS, torch.zeros(rows))
    weights[LOGITS_BIAS] = torch.cat([bias, (bias.mean() + ABSENT_LOGIT)[None]])


def _read_vocabularies(
    directory: Path, rows: Rows, unknown: str
) -> tuple[Vocabulary | None, Vocabulary | None]:
    source, target = (
        read_vocabulary(directory, "shared_vocabulary", rows=rows.get(stack, 0), unknown=unknown)
        or read_vocabulary(
            directory, f"{side}_vocabulary", rows=rows.get(stack, 0), unknown=unknown
        )
        for side, stack in (("source", "encoder"), ("target", "decoder"))
    )
    return source, target


PAIR = ("source.spm", "target.spm")
SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
SPECIAL_TOKENS = {"<s>", "</s>", "<unk>", "<pad>", "<blank>", "<mask>"}
DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
"""Defaults of missing tokens of `config.json`."""


def find_text_tokenizers(
    directory: Path, values: Values, rows: Rows = NO_ROWS
) -> TokenizerFiles | None:
    """Find the tokenizers of both sides; None without vocabularies.

    A `tokenizer.json` is used, with the files of `transformers` beside it. Otherwise the
    vocabularies number the pieces of `source.spm` and `target.spm`, or of one SentencePiece model
    for both sides. Without any of them, texts are tokens of the vocabularies.
    """
    settings = _tokenizer_settings(directory / CONFIG_FILE, values)
    found = _read_vocabularies(directory, rows, settings["unk_token"])
    source_tokens, target_tokens = (vocabulary or [] for vocabulary in found)
    library = directory / LIBRARY_FILE
    if not any((directory / name).exists() for name in (LIBRARY_FILE, *PAIR, *SHARED_MODELS)):
        return _of_tokens(directory, settings, source_tokens, target_tokens)
    vocabularies = _numbered(source_tokens), _numbered(target_tokens)
    naming, language_tokens = _languages(settings, vocabularies[0])
    languages = naming.languages(language_tokens) if naming else None
    template = _template(directory, settings, vocabularies[0], naming)
    if library.exists():
        checkpoint = TokenizerCheckpoint(directory, {}, len(source_tokens), len(target_tokens))
        codes = [naming.token(code) for code in language_tokens] if naming else []
        tokenizer = checkpoint.assembled(codes)
        assert tokenizer is not None
        return TokenizerFiles(
            *(tokenizer, tokenizer, template if naming else None, languages),
            cleans_up=checkpoint.cleans_up(tokenizer),
        )
    special = SPECIAL_TOKENS | {settings[name] for name in DEFAULTS}
    special |= {naming.token(code) for code in language_tokens} if naming else set()
    source, target = (
        PieceModel(
            model,
            {piece: token for piece, token in vocabulary.items() if piece not in special},
            vocabulary.get(settings["unk_token"]),
            leading_code=any(piece.startswith(">>") for piece in source_tokens),
        )
        for model, vocabulary in zip(_models(directory), vocabularies, strict=True)
    )
    return TokenizerFiles(source, target, template, languages)


SPACES = r"[ \t\n\v\f\r]+"
"""No-break and other spaces may be tokens, or parts of them."""


def _of_tokens(
    directory: Path, settings: Mapping[str, Any], source: Vocabulary, target: Vocabulary
) -> TokenizerFiles | None:
    """Make tokenizers of texts that are tokens between spaces, as CTranslate2 takes and returns."""
    if not (source and target):
        return None
    names = [
        [settings[f"{side}_token"]] if settings.get(f"add_source_{side}") else []
        for side in ("bos", "eos")
    ]
    numbered = _numbered(source)
    check_has_tokens(directory, numbered, *names[0], *names[1])
    of_source = of_target = _splitting(numbered, settings)
    if source != target:
        of_target = _splitting(_numbered(target), settings)
    template = SourceTemplate(*(tuple(numbered[token] for token in side) for side in names))
    return TokenizerFiles(of_source, of_target, template, pretokenized=True)


def _splitting(vocabulary: Mapping[str, int], settings: Mapping[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary), unk_token=settings["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SPACES), "removed")
    if (end := settings["eos_token"]) in vocabulary:
        tokenizer.add_special_tokens([AddedToken(end, single_word=True, normalized=False)])
    return tokenizer


def _models(directory: Path) -> tuple[Path, Path]:
    if all_present(directory, *PAIR):
        found = directory / PAIR[0], directory / PAIR[1]
    else:
        shared = next(name for name in SHARED_MODELS if (directory / name).exists())
        found = directory / shared, directory / shared
    for model in found:
        load_sentencepiece(model)
    return found


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    numbered: dict[str, int] = {}
    for i, token in enumerate(tokens):
        numbered.setdefault(token, i)
    return numbered


def _tokenizer_settings(path: Path, values: Values) -> dict[str, Any]:
    settings = {**DEFAULTS, **values}
    wrong = [name for name in DEFAULTS if not isinstance(settings[name], str)]
    if wrong:
        found = ", ".join(f"{name}: {shown(settings[name])}" for name in wrong)
        raise DragomanError(f"{path}: expected special tokens as strings, found {found}")
    return settings


def _languages(
    settings: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> tuple[Multilingual | None, dict[str, int]]:
    # CTranslate2 states no start token for mBART-25, which starts from the target language.
    starts_open = settings.get("decoder_start_token") is None
    mbart = LANGUAGES_25 if starts_open else LANGUAGES_50
    for naming in (M2M_100_LANGUAGES, NLLB_LANGUAGES, mbart):
        tokens = naming.tokens_in(vocabulary)
        if len(tokens) > 1:
            return naming, tokens
    return None, {}


def _template(
    directory: Path,
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    naming: Multilingual | None,
) -> SourceTemplate:
    """Return the special tokens around a source text, as in training.

    OpenNMT models, which start decoding from <s>, state them; others have an end token.
    """
    begin, end = settings["bos_token"], settings["eos_token"]
    with_end = settings.get("decoder_start_token", "<s>") != "<s>"
    prefix = [begin] if settings.get("add_source_bos") else []
    suffix = [end] if with_end or settings.get("add_source_eos") or naming else []
    check_has_tokens(directory, vocabulary, *prefix, *suffix)
    if naming is not None:
        return naming.template(vocabulary[end])
    return SourceTemplate(
        *(tuple(vocabulary[token] for token in side) for side in (prefix, suffix))
    )


TEXT = Specification(range(2, 8), ("encoder", "decoder"), _describe, find_text_tokenizers)
