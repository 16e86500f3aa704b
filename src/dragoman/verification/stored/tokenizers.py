"""Compares the tokenizers of a bundle with its checkpoint's.

The checkpoint's tokenizers are written again, as an export writes them. Where files differ,
vocabularies, scores and merges are compared as data, everything else by what it does, see
`tokenizer_behaviour`. So white space is no difference, and a merge that no text needs is one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from dragoman.errors import DragomanError, shown
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import BundleError
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.texts import Tokenizers
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.codecs import PieceCodec
from dragoman.runtime.texts.codecs.library import load_tokenizer
from dragoman.runtime.texts.codecs.pieces import load_sentencepiece
from dragoman.runtime.texts.codecs.tokenizer_file import read_tokenizer
from dragoman.runtime.texts.tokenizer import TextCodec

from .tokenizer_behaviour import (
    TEXTS,
    Comparison,
    Differences,
    library_behaviour,
    piece_behaviour,
    with_special_tokens,
)


class _Side(NamedTuple):
    model: Path
    vocabulary: Path | None
    """The ids of the pieces of a SentencePiece model."""


class _Pair(NamedTuple):
    label: str
    expected: _Side
    found: _Side
    own_template: bool
    """Whether the special tokens around a text are those of the file."""


def compare_tokenizers(bundle: Bundle, checkpoint: OpenedCheckpoint) -> Check | None:
    """Compare the tokenizers of a bundle with those of its checkpoint."""
    files, record = checkpoint.tokenizers, bundle.manifest.tokenizers
    if files is None:
        return None
    differences, compared = Differences(), 0
    if record is None:
        differences.add("tokenizers: expected those of the checkpoint, found none")
    else:
        with tempfile.TemporaryDirectory() as directory:
            compared = _compare_all(bundle, record, files, Path(directory), differences)
    count, problem = differences.count, differences.problem
    return Check("tokenizers", compared, "token ids", count, passed=not problem, problem=problem)


def _compare_all(
    bundle: Bundle,
    found: Tokenizers,
    files: TokenizerFiles,
    directory: Path,
    differences: Differences,
) -> int:
    expected, compared = files.write(ScratchWriter(directory)), 0
    for pair in _pairs(expected, directory, found, bundle.directory, differences):
        compared += _size(pair.expected)
        files_of_both = zip(pair.expected, pair.found, strict=True)
        if all(a is None or b is None or _same_file(a, b) for a, b in files_of_both):
            continue
        own = Differences(pair.label)
        try:
            if pair.expected.vocabulary is None:
                _compare_library(pair, own)
            else:
                _compare_pieces(pair, own)
        except BundleError as error:
            own = Differences(pair.label)
            own.add("; ".join(error.problems))
        if own.problem:
            differences.add(own.problem, own.tokens)
    languages = bundle.manifest.languages
    if not differences.problem and (
        (expected.template, files.languages) != (found.template, languages)
    ):
        codecs = (
            TextCodec.of(expected, directory, files.languages),
            TextCodec.of(found, bundle.directory, languages),
        )
        known = [given.tokens if given else {} for given in (files.languages, languages)]
        _compare_templates(*codecs, [None, *(known[0] | known[1])], differences)
    return compared


def _pairs(
    expected: Tokenizers,
    expected_in: Path,
    found: Tokenizers,
    found_in: Path,
    differences: Differences,
) -> Iterator[_Pair]:
    sides = []
    for name in ("source", "target"):
        own, other = (
            _side(getattr(record, name), getattr(record, f"{name}_vocabulary"), directory)
            for record, directory in ((expected, expected_in), (found, found_in))
        )
        sides.append((f"{name} tokenizer", own, other))
    if sides[0][1:] == sides[1][1:]:
        sides = [("tokenizer", *sides[0][1:])]
    for label, own, other in sides:
        wanted_kind, other_kind = _kind(own), _kind(other)
        if wanted_kind != other_kind:
            differences.add(f"{label}: expected {wanted_kind}, found {other_kind}")
        elif own is not None and other is not None:
            yield _Pair(label, own, other, expected.template is None)


def _side(model: str | None, vocabulary: str | None, directory: Path) -> _Side | None:
    if model is None:
        return None
    return _Side(directory / model, None if vocabulary is None else directory / vocabulary)


def _kind(side: _Side | None) -> str:
    if side is None:
        return "none"
    return (
        "a file of the tokenizers library" if side.vocabulary is None else "a SentencePiece model"
    )


def _size(side: _Side) -> int:
    if side.vocabulary is not None:
        return len(_json(side.vocabulary)["pieces"])
    data = _json(side.model)
    vocabulary = data["model"]["vocab"]
    ids = set(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary)))
    return len(ids | {token["id"] for token in data.get("added_tokens", [])})


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _same_file(expected: Path, found: Path) -> bool:
    if expected.read_bytes() == found.read_bytes():
        return True
    try:
        return expected.suffix == ".json" and bool(_json(expected) == _json(found))
    except (ValueError, RecursionError):  # reading the tokenizer tells what is wrong
        return False


def _compare_library(pair: _Pair, own: Differences) -> None:
    expected, found = read_tokenizer(pair.expected.model), read_tokenizer(pair.found.model)
    ids = expected.get_vocab(with_added_tokens=True)
    _compare_ids(ids, found.get_vocab(with_added_tokens=True), own)
    wanted, other = _parts(expected), _parts(found)
    for name in ("scores", "merges"):
        _compare_lists(name, wanted.pop(name), other.pop(name), ids, own)
    _compare_settings(wanted, other, own)
    if not own.problem and wanted != other:
        _compare_behaviour(pair, expected, found, own)


def _compare_ids(
    expected: Mapping[str, int], found: Mapping[str, int], differences: Differences
) -> None:
    if expected == found:
        return
    for piece in sorted(expected.keys() | found.keys(), key=lambda p: (expected.get(p, -1), p)):
        ids = expected.get(piece), found.get(piece)
        if ids[0] != ids[1]:
            wanted, other = ("none" if token is None else token for token in ids)
            differences.add(
                f"expected {shown(piece)} -> {wanted}, found {other}",
                [token for token in ids if token is not None],
            )


def _compare_lists(
    name: str,
    expected: list[Any],
    found: list[Any],
    ids: Mapping[str, int],
    differences: Differences,
) -> None:
    if expected == found:
        return
    changed = set(map(tuple, expected)) ^ set(map(tuple, found))
    # Of a merge, the token that it makes; of a score, the token that has it.
    pieces = ("".join(part for part in item if isinstance(part, str)) for item in changed)
    for place in range(max(len(expected), len(found))):
        wanted, other = (
            shown(items[place]) if place < len(items) else "none" for items in (expected, found)
        )
        if wanted != other:
            differences.add(
                f"expected {wanted} at place {place} of its {name}, found {other}",
                [ids[piece] for piece in pieces if piece in ids],
            )
            return


def _compare_settings(
    expected: Mapping[str, Any], found: Mapping[str, Any], differences: Differences
) -> None:
    wanted, other = (
        {n: v or None for n, v in parts["model"].items() if not isinstance(v, list | dict)}
        for parts in (expected, found)
    )
    for name in wanted | other:
        if wanted.get(name) != other.get(name):
            differences.add(
                f"{name}: expected {shown(str(wanted.get(name)))}, found "
                f"{shown(str(other.get(name)))}"
            )


def _parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Write a tokenizer as this library does, in parts: the rest, scores and merges."""
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    vocabulary = data["model"].pop("vocab", None)
    data["scores"] = vocabulary if isinstance(vocabulary, list) else []
    data["merges"] = data["model"].pop("merges", [])
    return data


def _compare_behaviour(
    pair: _Pair, expected: Tokenizer, found: Tokenizer, differences: Differences
) -> None:
    """Compare tokenizers of the same vocabulary, which read special tokens as such."""
    tokens = sorted(set(expected.get_vocab(with_added_tokens=True).values()))
    texts = [*TEXTS, *with_special_tokens(expected), *with_special_tokens(found)]
    loaded = load_tokenizer(pair.expected.model), load_tokenizer(pair.found.model)
    as_text, reading = (
        Comparison(
            library_behaviour(one, pair.own_template, skip=skip),
            library_behaviour(other, pair.own_template, skip=skip),
            differences,
        )
        for (one, other), skip in ((loaded, True), ((expected, found), False))
    )
    as_text.encode(texts)
    reading.encode(texts)
    reading.encode(list(pairwise(texts)))
    reading.decode([[token] for token in tokens])
    reading.decode([encoded.ids for encoded in reading.expected.encode(texts, False)])
    as_text.each_token(tokens)
    as_text.sweep()


def _compare_pieces(pair: _Pair, own: Differences) -> None:
    expected, found = _pieces(pair.expected), _pieces(pair.found)
    _compare_ids(expected.ids, found.ids, own)
    for name, wanted in expected.settings.items():
        if wanted != (other := found.settings[name]):
            own.add(f"expected {name} {wanted}, found {other}")
    _compare_lists("pieces", expected.scored, found.scored, expected.ids, own)
    if not own.problem and not _same_file(pair.expected.model, pair.found.model):
        behaviours = piece_behaviour(expected.codec), piece_behaviour(found.codec)
        comparison = Comparison(*behaviours, own)
        comparison.encode(TEXTS)
        comparison.each_token(list(expected.ids.values()))
        comparison.sweep()


class _Pieces(NamedTuple):
    codec: PieceCodec
    ids: dict[str, int]
    settings: dict[str, Any]
    scored: list[Any]
    """Each piece of the model with its score and kinds."""


def _pieces(side: _Side) -> _Pieces:
    assert side.vocabulary is not None
    codec, processor = PieceCodec(side.model, side.vocabulary), load_sentencepiece(side.model)
    data = _json(side.vocabulary)
    settings = {"unknown": data["unknown"], "leading_code": data.get("leading_code", False)}
    kinds = ("control", "unknown", "unused", "byte")
    scored = [
        [
            processor.id_to_piece(number),
            processor.get_score(number),
            *((kind,) for kind in kinds if getattr(processor, f"is_{kind}")(number)),
        ]
        for number in range(processor.get_piece_size())
    ]
    return _Pieces(codec, data["pieces"], settings, scored)


def _compare_templates(
    expected: TextCodec, found: TextCodec, languages: list[str | None], differences: Differences
) -> None:
    for language in languages:
        for text in ("a", "A", "1", "Hello world"):
            wanted, other = (_tokens(codec, text, language) for codec in (expected, found))
            if wanted != other:
                place = "" if language is None else f" in {language}"
                differences.add(
                    f"source tokenizer: expected {shown(text)}{place} -> {wanted}, found {other}"
                )
                return


def _tokens(codec: TextCodec, text: str, language: str | None) -> list[int] | str:
    try:
        return codec.encode(text, language)
    except (DragomanError, ValueError):  # a language or a symbol that it does not know
        return "none"
