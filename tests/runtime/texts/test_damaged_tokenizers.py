"""Tokenizer files that make the libraries fail are refused, at export and when a bundle is loaded;
what cannot be seen in a file costs the one input that meets it."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer

from dragoman import DragomanError
from dragoman.export.tokenizers.reading import read_library_file
from dragoman.runtime import BundleError, Model, RejectedError, load
from dragoman.runtime.texts.codecs import LibraryCodec, PieceCodec, TokenizerError
from dragoman.runtime.texts.codecs.charsmap import charsmap_problem

from .charsmaps import charsmap, packed, trie

RULES = {"A": "a", "é": "e\u0301", "\ufb01": "fi", "\u2460": "1", "x": "", "ab": "\u65e5"}
VOCABULARY = {piece: i for i, piece in enumerate(["<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"])}
END = {"SpecialToken": {"id": "</s>", "type_id": 0}}


def plain() -> dict[str, Any]:
    """A tokenizer file of letters, which ends texts with </s>."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, END],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": VOCABULARY,
            "merges": [],
        },
    }


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*parts: Any, of: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", of: list(parts)}


def precompiled(data: bytes) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


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
        assert LibraryCodec(path).encode(text) == [*(VOCABULARY[c] for c in expected), 1]


def mutated(data: bytes, generator: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(result))
        match generator.randrange(4):
            case 0:
                result[at] = generator.randrange(256)
            case 1:
                result[at] ^= 1 << generator.randrange(8)
            case 2:
                del result[at : at + generator.choice([1, 2, 4, 64])]
            case _:
                result[-1 - at % 30] = generator.choice([0, 65, 128, 255])
    return bytes(result)


def test_rules_that_pass_never_make_the_library_fail() -> None:
    """The oracle is the library itself, on every byte after every key of the rules."""
    original = charsmap(RULES)
    texts = [
        *RULES,
        *map(chr, range(1, 0x180)),
        *(key + chr(c) for key in RULES for c in range(256)),
    ]
    generator = random.Random(0)
    passed = failed = 0
    for _ in range(400):
        data = mutated(original, generator)
        problem = charsmap_problem(data)
        if data[:4] != original[:4] and problem:
            continue  # the library would try to get the memory
        try:
            file = json.dumps(plain() | {"normalizer": precompiled(data)})
            normalizer: Any = Tokenizer.from_str(file).normalizer
            lengths = [len(normalizer.normalize_str(text)) for text in texts]
        except BaseException as error:
            assert type(error).__name__ == "PanicException"
            try:  # that rules are not UTF-8, the library says when it reads them
                data[4 + int.from_bytes(data[:4], "little") :].decode()
            except UnicodeDecodeError:
                continue
            assert problem
            failed += 1
        else:
            assert problem or max(lengths) <= 2 * 256
            passed += not problem
    assert passed > 20 and failed > 20


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("spm")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a cat, a dog"] * 20),
        model_prefix=str(directory / "spm"),
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return directory / "spm.model"


def test_a_sentencepiece_model_whose_rules_write_no_utf_8(spm: Path, tmp_path: Path) -> None:
    """U+FB01 is among the texts tried out, and its replacement is \"fi\"."""
    data = spm.read_bytes()
    assert data.count(b"\0fi\0") == 1
    (tmp_path / "bad.model").write_bytes(data.replace(b"\0fi\0", b"\0\xff\xff\0"))
    (tmp_path / "vocabulary.json").write_text('{"pieces": {}, "unknown": 0}')
    with pytest.raises(BundleError, match=r"bad\.model: fails when it is tried out: 'utf-8'"):
        PieceCodec(tmp_path / "bad.model", tmp_path / "vocabulary.json")


def test_a_sentencepiece_model_whose_rules_were_not_met_at_load(spm: Path, tmp_path: Path) -> None:
    data = spm.read_bytes()
    assert data.count(b"\0ffi\0") == 1
    (tmp_path / "bad.model").write_bytes(data.replace(b"\0ffi\0", b"\0\xff\xfe\xff\0"))
    (tmp_path / "vocabulary.json").write_text('{"pieces": {}, "unknown": 0}')
    codec = PieceCodec(tmp_path / "bad.model", tmp_path / "vocabulary.json")
    assert codec.encode("cat") == [0] * len(codec.encode("cat"))
    with pytest.raises(TokenizerError, match=r"bad\.model: this tokenizer fails: 'utf-8'"):
        codec.encode("\ufb03")


def panic() -> BaseException:
    """What Rust code raises through the library when it fails."""
    template = plain()["post_processor"] | {"special_tokens": {}}
    tokenizer = Tokenizer.from_str(json.dumps(plain() | {"post_processor": template}))
    try:
        tokenizer.encode("")
    except BaseException as error:
        assert not isinstance(error, Exception)
        return error
    raise AssertionError


class Failing:
    """A tokenizer that panics at one text, or at one token."""

    def __init__(self, tokenizer: Tokenizer, text: str = "", token: int = -1) -> None:
        self._tokenizer, self._text, self._token = tokenizer, text, token

    def encode(self, text: str, **options: Any) -> Any:
        if text == self._text:
            raise panic()
        return self._tokenizer.encode(text, **options)

    def decode(self, tokens: list[int], **options: Any) -> Any:
        if self._token in tokens:
            raise panic()
        return self._tokenizer.decode(tokens, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_a_panic_costs_the_one_input_that_met_it(text_case: Any) -> None:
    model: Any = load(text_case[1], threads=1)
    good, bad = model.generate(["abc", "zzz"])
    assert set(bad.tokens) - set(good.tokens)
    only_bad = (set(bad.tokens) - set(good.tokens)).pop()
    error = "tokenizer.json: this tokenizer fails: no entry found for key"

    source = model._codec._source
    source._tokenizer = Failing(source._tokenizer, text="zzz")
    first, second = model.generate(["abc", "zzz"])
    assert (first, second.finish_reason) == (good, "rejected")
    assert second.error == f"source_{error}"
    with pytest.raises(RejectedError, match="this tokenizer fails"):
        model.stream("zzz")

    model = load(text_case[1], threads=1)
    target = model._codec._target
    target._tokenizer = Failing(target._tokenizer, token=only_bad)
    first, second = model.generate(["abc", "zzz"])
    assert (first, second.finish_reason, second.tokens) == (good, "rejected", ())
    assert second.error == f"target_{error}"
    with pytest.raises(RejectedError, match="this tokenizer fails"):
        model.detokenize([only_bad])


def test_a_stream_that_meets_a_panic_is_rejected(tmp_path: Path) -> None:
    """The library's Strip looks at symbols that a short token does not have."""
    strip = {"type": "Strip", "content": "z", "start": 0, "stop": 2}
    vocabulary = {**{f"<{i}>": i for i in range(64)}, "z": 64, "a": 65}
    file = plain() | {"decoder": strip, "post_processor": None}
    file["model"] = file["model"] | {"unk_token": "<0>", "vocab": vocabulary}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    codec = LibraryCodec(tmp_path / "tokenizer.json")
    assert codec.decode([65]) == codec.stream().step(65) == "a"
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: this tokenizer fails: index"):
        codec.decode([64])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: this tokenizer fails: index"):
        codec.stream().step(64)


def test_interrupts_are_not_taken_for_panics(text_case: Any) -> None:
    model: Any = load(text_case[1], threads=1)

    class Interrupted:
        def encode(self, text: str, **options: Any) -> Any:
            raise KeyboardInterrupt

    model._codec._source._tokenizer = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        model.generate(["abc"])


def test_a_bundle_with_such_a_tokenizer_is_not_loaded(text_case: Any, tmp_path: Path) -> None:
    assert isinstance(load(text_case[1], threads=1), Model)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(plain() | DAMAGES["a trie of 4 GB"][0]))
    with pytest.raises(
        BundleError, match=r"tokenizer\.json: precompiled_charsmap: expected a trie"
    ):
        LibraryCodec(path)
    assert np.frombuffer(OVERFLOW[:4], "<u4")[0] == 2**32 - 4
