"""What a tokenizer class of `transformers` takes from `tokenizer.json` or a SentencePiece model."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from dragoman.files.regular_files import VOCABULARY_BYTES, read_regular
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece

from .settings import Token

Scored = tuple[str, float]
"""A piece and its score."""


@dataclass(frozen=True)
class Vocabulary:
    """What a class takes from the files of a vocabulary.

    Attributes:
        pieces: ids by piece or, for Unigram, pieces with their scores
        merges: pairs of pieces, for byte-pair encoding
        charsmap: normalization rules of a SentencePiece model
        post_processor: what `tokenizer.json` puts around texts
        added: control and user-defined symbols of a SentencePiece model
        scored: pieces of a SentencePiece model with their scores, in its own order
    """

    pieces: Mapping[str, int] | Sequence[tuple[str, float]] = ()
    merges: Sequence[tuple[str, str]] = ()
    charsmap: bytes | None = None
    post_processor: Any = None
    added: tuple[Token, ...] = ()
    scored: tuple[Scored, ...] = ()


def library_vocabulary(data: Mapping[str, Any]) -> Vocabulary:
    """Return what a class takes from the fields of a valid `tokenizer.json`."""
    model, normalizer = data["model"], data.get("normalizer") or {}
    merges = (m.split(" ") if isinstance(m, str) else m for m in model.get("merges", ()))
    rules = (
        rule["precompiled_charsmap"]
        for rule in normalizer.get("normalizers", [normalizer])
        if rule.get("type") == "Precompiled"
    )
    charsmap = next(rules, None)
    empty: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "post_processor": data.get("post_processor"),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    return Vocabulary(
        model["vocab"],
        [(first, second) for first, second in merges],
        base64.b64decode(charsmap) if charsmap else None,
        Tokenizer.from_str(json.dumps(empty)).post_processor,
    )


def sentencepiece_vocabulary(path: Path) -> Vocabulary:
    """Return the pieces of a SentencePiece model and its rules.

    Raises:
        BundleError: the file is damaged, or the package sentencepiece is missing.
    """
    load_sentencepiece(path)
    proto = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    proto.ParseFromString(read_regular(path, VOCABULARY_BYTES))
    symbols = proto.SentencePiece.Type
    added = tuple(
        AddedToken(piece.piece, normalized=False, special=piece.type == symbols.CONTROL)
        for piece in proto.pieces
        if piece.type in (symbols.CONTROL, symbols.USER_DEFINED)
    )
    charsmap = proto.normalizer_spec.precompiled_charsmap or None
    scored = tuple((piece.piece, piece.score) for piece in proto.pieces)
    return Vocabulary(charsmap=charsmap, added=added, scored=scored)


def merges_of(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges that make each piece of two others, in the order of their ids."""
    merges = []
    for piece, token in ids.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [(first, second) for first, second in halves if first in ids and second in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(token, pair) for pair in known]
    merges.sort(key=lambda merge: (merge[0], len(merge[1][0]), len(merge[1][1])))
    return [pair for _, pair in merges]
