"""Vocabularies of `tokenizer.json` and of SentencePiece models.

A tokenizer class of `transformers` takes parts of them; a model to train takes all that they say.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import VOCABULARY_BYTES, check_regular, read_regular
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece
from dragoman.runtime.texts.codecs.tokenizer_file import (
    TRIAL_TEXTS,
    check_tokenizer,
    read_tokenizer,
)

from .settings import Token

Scored = tuple[str, float]
"""A piece and its score."""


@dataclass(frozen=True)
class Vocabulary:
    """What a class takes from the files of a vocabulary."""

    pieces: Mapping[str, int] | Sequence[tuple[str, float]] = ()
    """Ids by piece or, for Unigram, pieces with their scores."""
    merges: Sequence[tuple[str, str]] = ()
    """Pairs of pieces, for byte-pair encoding."""
    charsmap: bytes | None = None
    """Normalization rules of a SentencePiece model."""
    post_processor: Any = None
    """What `tokenizer.json` puts around texts."""
    added: tuple[Token, ...] = ()
    """Control and user-defined symbols of a SentencePiece model."""
    scored: tuple[Scored, ...] = ()
    """Pieces of a SentencePiece model with their scores, in its own order."""


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
    """Return the pieces of a SentencePiece model and its rules."""
    load_sentencepiece(path)
    proto = _read_proto(path)
    symbols = proto.SentencePiece.Type
    added = tuple(
        AddedToken(piece.piece, normalized=False, special=piece.type == symbols.CONTROL)
        for piece in proto.pieces
        if piece.type in (symbols.CONTROL, symbols.USER_DEFINED)
    )
    charsmap = proto.normalizer_spec.precompiled_charsmap or None
    scored = tuple((piece.piece, piece.score) for piece in proto.pieces)
    return Vocabulary(charsmap=charsmap, added=added, scored=scored)


def _read_proto(path: Path) -> Any:
    try:
        proto = import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    except ImportError as error:  # the package protobuf is missing, which onnx brings
        raise DragomanError(
            f"{path}: reading a SentencePiece model needs more than is installed ({error}): "
            "pip install 'dragoman[export,sentencepiece]'"
        ) from error
    proto.ParseFromString(read_regular(path, VOCABULARY_BYTES))
    return proto


def read_trainable(path: Path) -> Tokenizer:
    """Read a vocabulary to train a model with: `tokenizer.json`, or else a SentencePiece model.

    Texts have the tokens that the file's own library gives them, and one at their end. Tokens are
    numbered anew: those for padding, start, end and unknown characters, which are added if the file
    lacks them, have the ids 0 to 3.

    Raises:
        DragomanError: the file is damaged, or has rules that cannot be reproduced.
    """
    check_regular(path, VOCABULARY_BYTES)
    if path.suffix.lower() == ".json":
        tokenizer = read_tokenizer(path)
        return _renumbered(tokenizer, _roles(tokenizer))
    processor, proto = load_sentencepiece(path), _read_proto(path)
    tokenizer = _of_sentencepiece(path, proto)
    check_tokenizer(tokenizer, path)
    pieces = [piece.piece for piece in proto.pieces]
    for text in (*TRIAL_TEXTS, *(" ".join(pieces[n : n + 8]) for n in range(0, len(pieces), 97))):
        text = text.replace("\u2581", " ").replace("<", "")  # spelled special tokens are text
        expected = processor.encode(text, out_type=int)
        # The order of pieces may be another one, if both orders have the same score.
        if sorted(tokenizer.encode(text).ids) != sorted(expected):
            raise DragomanError(
                f"{path}: expected a SentencePiece model whose tokens can be reproduced, found "
                f"others for {shown(text)}"
            )
    ids = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
    return _renumbered(tokenizer, [pieces[n] if n >= 0 else None for n in ids])


def _of_sentencepiece(path: Path, proto: Any) -> Tokenizer:
    rules, trained, kinds = proto.normalizer_spec, proto.trainer_spec, proto.SentencePiece.Type
    of_kind = {kind: [p.piece for p in proto.pieces if p.type == kind] for kind in kinds.values()}
    names = {number: name for name, number in trained.ModelType.items()}
    kind = names[trained.model_type]
    if kind == "WORD" or trained.treat_whitespace_as_suffix or of_kind[kinds.UNUSED]:
        raise DragomanError(
            f"{path}: expected a SentencePiece model of unigrams, byte pairs or characters, with "
            "spaces before words and no unused pieces, found another one"
        )
    unknown = next((n for n, p in enumerate(proto.pieces) if p.type == kinds.UNKNOWN), None)
    if unknown is None:
        raise DragomanError(f"{path}: expected a piece for unknown characters, found none")
    if kind == "UNIGRAM":
        scored = [(piece.piece, piece.score) for piece in proto.pieces]
        tokenizer = Tokenizer(models.Unigram(scored, unknown, trained.byte_fallback))
    else:
        by_score = sorted(proto.pieces, key=lambda piece: -piece.score)
        normal = [piece.piece for piece in by_score if piece.type == kinds.NORMAL]
        ranks = {piece: rank for rank, piece in enumerate(normal)}
        tokenizer = Tokenizer(
            models.BPE(
                {piece.piece: number for number, piece in enumerate(proto.pieces)},
                merges_of(ranks) if kind == "BPE" else [],
                unk_token=proto.pieces[unknown].piece,
                fuse_unk=True,
                byte_fallback=trained.byte_fallback,
            )
        )
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        # The library applies a rule to a first character and drops what else a reader sees as one
        # with it: further marks on a letter, the line feed of a line end.
        if "nfkc" in rules.name:
            steps.append(normalizers.NFC())
        if "nmt" in rules.name:
            steps.append(normalizers.Replace("\r\n", "\n\n"))
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +|[ \u2581]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    symbols = of_kind[kinds.USER_DEFINED]
    if rules.add_dummy_prefix:
        # The library normalizes a symbol, too, before it looks for it.
        alone = "|".join(map(re.escape, symbols))
        not_alone = rf"(?!(?:{alone})\z)" if symbols else ""
        steps.append(normalizers.Replace(Regex(rf"\A(?!\z){not_alone}"), " "))
    steps.append(normalizers.Replace(" ", "\u2581"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    special = [*of_kind[kinds.CONTROL], proto.pieces[unknown].piece]
    tokenizer.pre_tokenizer = _apart([*special, *of_kind[kinds.BYTE]])
    joined = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    prefix = [decoders.Strip(" ", 1, 0)] if rules.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence([*joined, *prefix])
    tokenizer.add_tokens([AddedToken(s, special=False, normalized=True) for s in symbols])
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    tokenizer.encode_special_tokens = True
    return tokenizer


def _apart(tokens: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Make a pre-tokenizer for which tokens that a user spells are text: none is found whole."""
    points = (f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in tokens if len(t) > 1)
    return pre_tokenizers.Split(Regex("|".join(points)), "isolated")


_NAMES = (
    ("<pad>", "[PAD]", "<|pad|>"),
    ("<s>", "[CLS]", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>"),
    ("</s>", "[SEP]", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>"),
    ("<unk>", "[UNK]"),
)
"""The usual names of the tokens for padding, start, end and unknown characters."""


def _roles(tokenizer: Tokenizer) -> list[str | None]:
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    found = [next((name for name in names if name in special), None) for names in _NAMES]
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    return [*found[:3], unknown or found[3]]


def _renumbered(tokenizer: Tokenizer, roles: Sequence[str | None]) -> Tokenizer:
    """Return a tokenizer with special tokens first and an end token after each text.

    Roles are padding, start, end and unknown characters.
    """
    data = json.loads(tokenizer.to_str())
    model, vocabulary = data["model"], tokenizer.get_vocab(with_added_tokens=True)
    special = [name or names[0] for name, names in zip(roles, _NAMES, strict=True)]
    others = sorted(vocabulary.keys() - set(special), key=vocabulary.__getitem__)
    ids = {token: number for number, token in enumerate([*special, *others])}
    if isinstance(model["vocab"], list):
        scores = dict(model["vocab"])
        own = [*special, *(token for token in others if token in scores)]
        model["vocab"] = [[token, scores.get(token, 0.0)] for token in own]
        model["unk_id"] = ids[special[3]]
    else:
        own = [*special, *(token for token in others if token in model["vocab"])]
        model["vocab"] = {token: ids[token] for token in own}
    added = {token["content"]: token for token in data["added_tokens"]}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for token in special:
        added[token] = {"content": token, **plain} | added.get(token, {}) | {"special": True}
    by_id = sorted(added.values(), key=lambda token: ids[token["content"]])
    data["added_tokens"] = [token | {"id": ids[token["content"]]} for token in by_id]
    data["post_processor"] = None
    made = Tokenizer.from_str(json.dumps(data))
    if isinstance(model["vocab"], list) and (new := [t for t in special if t not in scores]):
        steps = [step for step in (made.pre_tokenizer, _apart(new)) if step is not None]
        made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    end = special[2]
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, ids[end])]
    )
    made.encode_special_tokens = True  # a user's "</s>" is text
    return made


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
