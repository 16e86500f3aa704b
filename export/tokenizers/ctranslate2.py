"""The tokenizers beside a CTranslate2 model, whose vocabularies are files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DragomanError
from dragoman.runtime.codecs.pieces import load_sentencepiece
from dragoman.runtime.languages import SourceTemplate

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
        size = len(_tokens(directory, "vocabulary"))
        return TokenizerFiles(None, without_timestamps(read_library_file(library, size)))
    shared = _tokens(directory, "shared_vocabulary")
    source = _tokens(directory, "source_vocabulary") or shared
    target = _tokens(directory, "target_vocabulary") or shared
    settings = read_object(directory / "config.json")
    family, tokens = _languages(settings, source)
    languages = family.languages(tokens) if family else None
    template = _template(directory, settings, source, family)
    if library.is_file():
        read_library_file(library, min(len(source), len(target)))
        return TokenizerFiles(library, library, template if family else None, languages)
    models = _models(directory)
    if models is None:
        return None
    named = {str(settings.get(name)) for name in ("bos_token", "eos_token", "unk_token")}
    special = _SPECIAL | named | ({family.token(code) for code in tokens} if family else set())
    found, into = (
        PieceModel(
            model,
            {piece: token for piece, token in vocabulary.items() if piece not in special},
            vocabulary.get(settings.get("unk_token", "<unk>")),
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


def _tokens(directory: Path, name: str) -> dict[str, int]:
    """A list of tokens, the first being token 0; empty where there is no such file."""
    json_file, text_file = directory / f"{name}.json", directory / f"{name}.txt"
    try:
        if json_file.is_file():
            tokens = json.loads(json_file.read_text(encoding="utf-8"))
        elif text_file.is_file():
            tokens = text_file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        else:
            return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DragomanError(f"{directory}: expected a list of tokens in {name}: {error}") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise DragomanError(f"{json_file}: expected a list of tokens")
    return {token: i for i, token in enumerate(tokens)}


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
    begin, end = settings.get("bos_token", "<s>"), settings.get("eos_token", "</s>")
    with_end = settings.get("decoder_start_token", "<s>") != "<s>"
    prefix = [begin] if settings.get("add_source_bos") else []
    suffix = [end] if with_end or settings.get("add_source_eos") or family else []
    demand(directory, vocabulary, *prefix, *suffix)
    if family is not None:
        return family.template(vocabulary[end])
    return SourceTemplate(
        *(tuple(vocabulary[token] for token in side) for side in (prefix, suffix))
    )
