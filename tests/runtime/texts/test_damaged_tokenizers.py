"""Tokenizer files that make the library fail are refused, at export and when a bundle is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import DragomanError
from dragoman.export.tokenizers.files import read_library_file
from dragoman.runtime.texts.codecs import LibraryCodec

from .charsmaps import charsmap, packed, trie
from .tokenizer_files import RULES, VOCABULARY, plain, precompiled


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: Any, of: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", of: list(parts)}


def added(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": 28, "content": content, "normalized": True, **flags}


def changed_trie(index: int, unit: int) -> bytes:
    units = trie({b"A": 0})
    units[index] = unit
    return packed(units, b"a\0")


GOOD_TRIE = trie({b"A": 0})
STATE = int(GOOD_TRIE[256 ^ ord("A")])
OVERFLOW = int.to_bytes(2**32 - 4, 4, "little") + charsmap(RULES)[4:]

DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "a template of unknown tokens": (
        {"post_processor": plain()["post_processor"] | {"special_tokens": {}}},
        "fails when it is tried out: no entry found for key",
    ),
    "a template of tokens outside the vocabulary": (
        {
            "post_processor": plain()["post_processor"]
            | {"special_tokens": {"</s>": {"id": "</s>", "ids": [4**15], "tokens": ["</s>"]}}}
        },
        "post_processor: expected tokens of the vocabulary, found 1073741824",
    ),
    "replacements that double": (
        {"normalizer": sequence(*[replace("a", "aa")] * 40)},
        "normalizer: its replacements make a text more than 16 times as long",
    ),
    "replacements that feed each other, deep inside": (
        {
            "normalizer": sequence(
                *[sequence(replace("a", "bb"), sequence(replace("b", "aa")))] * 20
            )
        },
        "normalizer: its replacements make",
    ),
    "regular expressions that double": (
        {"normalizer": sequence(*[replace("[\u2603]", "\u2603\u2603", "Regex")] * 40)},
        "normalizer: its replacements make",
    ),
    "patterns that match nothing": (
        {"normalizer": sequence(*[replace("", "xy", "Regex")] * 40)},
        "normalizer: its replacements make",
    ),
    "a decoder that doubles": (
        {"decoder": sequence(*[replace("a", "aa")] * 40, of="decoders")},
        "decoder: its replacements make",
    ),
    "a replacement that is a book": (
        {"normalizer": replace("a", "b" * 257)},
        "normalizer: expected replacements of at most 256 characters, found one of 257",
    ),
    "an added token of spaces that are stripped": (
        {
            "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
            "added_tokens": [added(" ")],
        },
        "added_tokens: nothing is left of ' ' when it is normalized",
    ),
    "an added token of accents that are removed": (
        {"normalizer": {"type": "StripAccents"}, "added_tokens": [added("\u0301")]},
        "added_tokens: nothing is left of",
    ),
    "pieces of no length": (
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        "fails when it is tried out: chunk size must be non-zero",
    ),
    "words without end": (
        {
            "model": {
                "type": "WordPiece",
                "unk_token": "<unk>",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 10**9,
                "vocab": VOCABULARY,
            }
        },
        "model.max_input_chars_per_word: expected at most 1000, found 1000000000",
    ),
    "merges shorter than their prefix": (
        {
            "model": plain()["model"]
            | {"continuing_subword_prefix": "#" * 9, "merges": [["a", "b"]]},
        },
        "not a tokenizer file: ",
    ),
    "rules that are not base64": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "ab?="}},
        "precompiled_charsmap: expected base64",
    ),
    "rules of no bytes": ({"normalizer": precompiled(b"")}, "expected a trie of at most 0 bytes"),
    "rules that end early": ({"normalizer": precompiled(charsmap(RULES)[:99])}, "expected a trie"),
    "a trie of 4 GB": ({"normalizer": precompiled(OVERFLOW)}, "found 4294967292"),
    "a trie that leaves itself at its root": (
        {"normalizer": precompiled(changed_trie(0, 1 << 20))},
        "precompiled_charsmap: its trie points beyond its end",
    ),
    "a trie that leaves itself at a letter": (
        {"normalizer": precompiled(changed_trie(256 ^ ord("A"), STATE | 1 << 28))},
        "precompiled_charsmap: its trie points beyond its end",
    ),
    "a replacement beyond the end": (
        {"normalizer": precompiled(packed(trie({b"A": 3}), b"a\0"))},
        "its trie points to replacements that are not there",
    ),
    "a replacement from the middle of a symbol": (
        {"normalizer": precompiled(packed(trie({b"A": 1}), "é\0".encode()))},
        "its trie points to replacements that are not there",
    ),
    "replacements without an end": (
        {"normalizer": precompiled(charsmap({"A": "a" * 257}))},
        "expected replacements of at most 256 bytes for a character, found 257",
    ),
}


def read_by_export(path: Path) -> object:
    return read_library_file(path, len(VOCABULARY))


READERS: tuple[Callable[[Path], object], ...] = (LibraryCodec, read_by_export)


@pytest.mark.parametrize("reader", READERS, ids=["load", "export"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_refused_by_name(
    damage: str, reader: Callable[[Path], object], tmp_path: Path
) -> None:
    changes, message = DAMAGES[damage]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(plain() | changes))
    with pytest.raises(DragomanError) as caught:
        reader(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


HARMLESS: dict[str, tuple[dict[str, Any], str, str]] = {
    "as it is": ({}, "abc", "abc"),
    "rules": ({"normalizer": precompiled(charsmap(RULES))}, "Ac\ufb01xx", "acfi"),
    "a trie whose leaf is a text's end": (
        {"normalizer": precompiled(packed(trie({b"A": 2}), b"a\0"))},
        "bAb",
        "bb",
    ),
    "many replacements of the same length": (
        {"normalizer": sequence(*[replace("a", "b"), replace("b", "a")] * 50)},
        "ab",
        "aa",
    ),
    "replacements that lengthen, each something else": (
        {"normalizer": sequence(*[replace(c, c.lower() * 2) for c in "ABCDEFGHIJKLMNOP"])},
        "ABP",
        "aabbpp",
    ),
    "letters set apart": (
        {"normalizer": sequence(*[replace(f"[{c}]", f"z{c}", "Regex") for c in "abcdefgh"])},
        "ab",
        "zazb",
    ),
    "an added token that is left": (
        {
            "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
            "added_tokens": [added(" q ")],
        },
        "abc",
        "abc",
    ),
}


@pytest.mark.parametrize("reader", READERS, ids=["load", "export"])
@pytest.mark.parametrize("case", HARMLESS)
def test_what_looks_like_it_and_works_is_read(
    case: str, reader: Callable[[Path], object], tmp_path: Path
) -> None:
    changes, text, expected = HARMLESS[case]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(plain() | changes))
    if reader is read_by_export:
        read_library_file(path, len(VOCABULARY) + 1)
    else:
        found = LibraryCodec(path).encode_source(text).tokens
        assert found == [*(VOCABULARY[c] for c in expected), 1]
