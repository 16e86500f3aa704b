"""The tokenizers beside a CTranslate2 model, whose vocabularies are files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DragomanError
from dragoman.runtime.format.languages import SourceTemplate
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from ..families.ctranslate2_vocabulary import read_vocabulary
from .files import PieceModel, TokenizerFiles
from .multilingual import MULTILINGUAL, Multilingual
from .reading import (
    LIBRARY_FILE,
    complete,
    demand,
    read_library_file,
    read_object,
    without_timestamps,
)

SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
_SPECIAL = {"<s>", "</s>", "<unk>", "<pad>", "<blank>", "<mask>"}
_DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def find_ctranslate2_tokenizers(
    directory: Path, spec: Literal["TransformerSpec", "WhisperSpec"]
) -> TokenizerFiles | None:
    """The tokenizers beside a CTranslate2 model, or None where there are none.

    A `tokenizer.json` is taken as it is. Otherwise the vocabularies number the pieces of
    `source.spm` and `target.spm`, or of one SentencePiece model for both sides.

    Raises:
        DragomanError: a file is damaged or of no use, half of a pair is missing, or ids are outside
            the model's vocabulary.
    """
    library = directory / LIBRARY_FILE
    if spec == "WhisperSpec":
        if not library.is_file():
            return None
        size = len(read_vocabulary(directory, "vocabulary") or [])
        return TokenizerFiles(None, without_timestamps(read_library_file(library, size)))
    shared = read_vocabulary(directory, "shared_vocabulary")
    tokens_of_source = shared or read_vocabulary(directory, "source_vocabulary") or []
    tokens_of_target = shared or read_vocabulary(directory, "target_vocabulary") or []
    source, target = _numbered(tokens_of_source), _numbered(tokens_of_target)
    settings = _settings(directory / "config.json")
    family, tokens = _languages(settings, source)
    languages = family.languages(tokens) if family else None
    template = _template(directory, settings, source, family)
    if library.is_file():
        read_library_file(library, min(len(tokens_of_source), len(tokens_of_target)))
        return TokenizerFiles(library, library, template if family else None, languages)
    models = _models(directory)
    if models is None:
        return None
    special = _SPECIAL | {settings[name] for name in _DEFAULTS}
    special |= {family.token(code) for code in tokens} if family else set()
    found, into = (
        PieceModel(
            model,
            {piece: token for piece, token in vocabulary.items() if piece not in special},
            vocabulary.get(settings["unk_token"]),
            leading_code=any(piece.startswith(">>") for piece in source),
        )
        for model, vocabulary in zip(models, (source, target), strict=True)
    )
    return TokenizerFiles(found, into, template, languages)


def _models(directory: Path) -> tuple[Path, Path] | None:
    """The SentencePiece models of both sides."""
    if complete(directory, "source.spm", "target.spm"):
        models = directory / "source.spm", directory / "target.spm"
    else:
        shared = next((n for n in SHARED_MODELS if (directory / n).is_file()), None)
        if shared is None:
            return None
        models = directory / shared, directory / shared
    for model in models:
        load_sentencepiece(model)
    return models


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    """Token -> id, the first of a token that is there twice."""
    numbered: dict[str, int] = {}
    for i, token in enumerate(tokens):
        numbered.setdefault(token, i)
    return numbered


def _settings(path: Path) -> dict[str, Any]:
    """What config.json states, with the special tokens that it leaves out."""
    settings = _DEFAULTS | read_object(path)
    wrong = [name for name in _DEFAULTS if not isinstance(settings[name], str)]
    if wrong:
        found = ", ".join(f"{name}: {settings[name]!r:.40}" for name in wrong)
        raise DragomanError(f"{path}: expected special tokens as strings, found {found}")
    return settings


def _languages(
    settings: Mapping[str, Any], vocabulary: Mapping[str, int]
) -> tuple[Multilingual | None, dict[str, int]]:
    """The family that names its languages as the vocabulary does, and their tokens."""
    # CTranslate2 leaves the start token open for mBART-25, which starts from the target language.
    mbart = "mbart" if settings.get("decoder_start_token") is None else "mbart_50"
    for family in (MULTILINGUAL[name] for name in ("m2m_100", "nllb", mbart)):
        tokens = family.among(vocabulary)
        if len(tokens) > 1:
            return family, tokens
    return None, {}


def _template(
    directory: Path,
    settings: Mapping[str, Any],
    vocabulary: Mapping[str, int],
    family: Multilingual | None,
) -> SourceTemplate:
    """What the model was trained to see. Models of OpenNMT, which start decoding from <s>, say it;
    others were trained with an end token, whether CTranslate2 adds it or its user."""
    begin, end = settings["bos_token"], settings["eos_token"]
    with_end = settings.get("decoder_start_token", "<s>") != "<s>"
    prefix = [begin] if settings.get("add_source_bos") else []
    suffix = [end] if with_end or settings.get("add_source_eos") or family else []
    demand(directory, vocabulary, *prefix, *suffix)
    if family is not None:
        return family.template(vocabulary[end])
    return SourceTemplate(
        *(tuple(vocabulary[token] for token in side) for side in (prefix, suffix))
    )
