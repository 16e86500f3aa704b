"""The tokenizers beside a CTranslate2 text model, whose vocabularies are separate files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.runtime.format.languages import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ...formats.ctranslate2 import Vocabulary, read_vocabulary
from ...formats.detection import CONFIG_FILE
from ...formats.json_files import read_json_if_present
from ...tokenizers import PieceModel, TokenizerFiles
from ...tokenizers.multilingual import Multilingual
from ...tokenizers.reading import LIBRARY_FILE, all_present, check_has_tokens, read_library_file
from ..m2m_100.languages import M2M_100_LANGUAGES, NLLB_LANGUAGES
from ..mbart import LANGUAGES_25, LANGUAGES_50
from .weights import NO_ROWS, Rows

SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
SPECIAL_TOKENS = {"<s>", "</s>", "<unk>", "<pad>", "<blank>", "<mask>"}
DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
"""For a `config.json` that leaves them out."""


def find_text_tokenizers(directory: Path, rows: Rows = NO_ROWS) -> TokenizerFiles | None:
    """The tokenizers of both sides; None if there are none.

    A `tokenizer.json` is taken unchanged. Otherwise the vocabularies number the pieces of
    `source.spm` and `target.spm`, or of one SentencePiece model for both sides.

    Raises:
        DragomanError: a file is damaged or unusable, half of a pair is missing, or ids are outside
            the model's vocabulary.
    """
    settings = _settings(directory / CONFIG_FILE)
    source_tokens, target_tokens = (
        vocabulary or [] for vocabulary in read_vocabularies(directory, rows, settings["unk_token"])
    )
    vocabularies = _numbered(source_tokens), _numbered(target_tokens)
    naming, language_tokens = _languages(settings, vocabularies[0])
    languages = naming.languages(language_tokens) if naming else None
    template = _template(directory, settings, vocabularies[0], naming)
    library = directory / LIBRARY_FILE
    if library.exists():
        read_library_file(library, min(len(source_tokens), len(target_tokens)))
        return TokenizerFiles(library, library, template if naming else None, languages)
    models = _models(directory)
    if models is None:
        return None
    special = SPECIAL_TOKENS | {settings[name] for name in DEFAULTS}
    special |= {naming.token(code) for code in language_tokens} if naming else set()
    source, target = (
        PieceModel(
            model,
            {piece: token for piece, token in vocabulary.items() if piece not in special},
            vocabulary.get(settings["unk_token"]),
            leading_code=any(piece.startswith(">>") for piece in source_tokens),
        )
        for model, vocabulary in zip(models, vocabularies, strict=True)
    )
    return TokenizerFiles(source, target, template, languages)


def read_vocabularies(
    directory: Path, rows: Rows, unknown: str
) -> tuple[Vocabulary | None, Vocabulary | None]:
    """The tokens of source and target; None where there is no file.

    Args:
        rows: of the tables of tokens
        unknown: the token for unknown ones

    Raises:
        CheckpointError: a file cannot be read, or is not a list of tokens.
    """
    source, target = (
        read_vocabulary(directory, "shared_vocabulary", rows=rows.get(stack, 0), unknown=unknown)
        or read_vocabulary(
            directory, f"{side}_vocabulary", rows=rows.get(stack, 0), unknown=unknown
        )
        for side, stack in (("source", "encoder"), ("target", "decoder"))
    )
    return source, target


def _models(directory: Path) -> tuple[Path, Path] | None:
    """The SentencePiece models of both sides."""
    if all_present(directory, "source.spm", "target.spm"):
        models = directory / "source.spm", directory / "target.spm"
    else:
        shared = next((n for n in SHARED_MODELS if (directory / n).exists()), None)
        if shared is None:
            return None
        models = directory / shared, directory / shared
    for model in models:
        load_sentencepiece(model)
    return models


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id, the first one of a token that occurs twice."""
    numbered: dict[str, int] = {}
    for i, token in enumerate(tokens):
        numbered.setdefault(token, i)
    return numbered


def _settings(path: Path) -> dict[str, Any]:
    """The fields of `config.json`, with defaults for special tokens that it leaves out."""
    settings = DEFAULTS | read_json_if_present(path)
    wrong = [name for name in DEFAULTS if not isinstance(settings[name], str)]
    if wrong:
        found = ", ".join(f"{name}: {settings[name]!r:.40}" for name in wrong)
        raise DragomanError(f"{path}: expected special tokens as strings, found {found}")
    return settings


def _languages(
    settings: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> tuple[Multilingual | None, dict[str, int]]:
    """How the vocabulary names languages, if it does, and their tokens by code."""
    # CTranslate2 leaves the start token open for mBART-25, which starts from the target language.
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
    """The special tokens around a source text, as in training.

    OpenNMT's models, which start decoding from <s>, state them. The others were trained with an end
    token, whether CTranslate2 or its user adds it.
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
