"""What is wrong with rules in binary; and failures of tokenizers that only some inputs meet."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer

from dragoman.runtime import BundleError, RejectedError, load
from dragoman.runtime.texts.codecs import LibraryCodec, PieceCodec, TokenizerError
from dragoman.runtime.texts.codecs.tokenizer_file import charsmap_problem

from .charsmaps import charsmap
from .tokenizer_files import RULES, plain, precompiled


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
    tokens = codec.encode_source("cat").tokens
    assert tokens == [0] * len(tokens)
    with pytest.raises(TokenizerError, match=r"bad\.model: this tokenizer fails: 'utf-8'"):
        codec.encode_source("\ufb03")


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

    source = model._open.codec._source
    source._reader.tokenizer = Failing(source._tokenizer, text="zzz")
    first, second = model.generate(["abc", "zzz"])
    assert (first, second.finish_reason) == (good, "rejected")
    assert second.error == f"source_{error}"
    with pytest.raises(RejectedError, match="this tokenizer fails"):
        model.stream("zzz")

    model = load(text_case[1], threads=1)
    target = model._open.codec._target
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

    model._open.codec._source._reader.tokenizer = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        model.generate(["abc"])
