"""Ranks give the tokens and the texts that tiktoken gives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import transformers as typed_transformers
from tiktoken._educational import bpe_train
from tiktoken_ext import openai_public
from tokenizers import Tokenizer

from dragoman import DragomanError
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.export.tokenizers.tiktoken import ENCODINGS
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

from ..many_texts import LANGUAGES, TEXTS, random_texts
from .ranks_files import BYTES, WORDS, Ranks, added, find, ranked, write

transformers: Any = typed_transformers

ENDOFTEXT = "<|endoftext|>"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def codec_of(files: TokenizerFiles, directory: Path) -> TextCodec:
    directory.mkdir()
    return TextCodec.of(files.write(ScratchWriter(directory)), directory, files.languages)


def tokenizer_of(directory: Path, size: int) -> Tokenizer:
    target = find(directory, size).target
    assert isinstance(target, Tokenizer)
    return target


def encoding_of(ranks: Ranks, pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "theirs", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={}
    )


@pytest.fixture(scope="session")
def trained() -> dict[bytes, int]:
    """Trained by tiktoken itself, with the pattern of GPT-2."""
    return dict(bpe_train(" ".join(LANGUAGES * 2), 500, GPT2, visualise=None))


@pytest.fixture(scope="session")
def definitions() -> dict[str, dict[str, Any]]:
    """tiktoken's own encodings, without their ranks, which it would download."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patch.setattr(openai_public, name, lambda *_, **__: {})
        return {name: make() for name, make in openai_public.ENCODING_CONSTRUCTORS.items()}


def test_texts_are_encoded_and_decoded_as_by_tiktoken(
    trained: dict[bytes, int], tmp_path: Path
) -> None:
    write(tmp_path, trained, pat_str=GPT2)
    codec = codec_of(find(tmp_path, 500), tmp_path / "bundle")
    theirs = encoding_of(trained, GPT2)
    for text in [*TEXTS, *random_texts(200)]:
        tokens = codec.encode(text)
        assert tokens == theirs.encode_ordinary(text), text
        assert codec.decode(tokens) == text
        stream = codec.stream()
        assert "".join(map(stream.step, tokens)) == text


def test_tokens_are_decoded_as_by_tiktoken(trained: dict[bytes, int], tmp_path: Path) -> None:
    """Parts of characters, too."""
    write(tmp_path, trained, pat_str=GPT2)
    codec = codec_of(find(tmp_path, 500), tmp_path / "bundle")
    theirs = encoding_of(trained, GPT2)
    generator = random.Random(0)
    for length in range(200):
        tokens = generator.choices(range(500), k=length % 20)
        assert codec.decode(tokens) == theirs.decode(tokens), tokens
    surfaces = codec.surfaces(500)
    assert [surfaces[token] for token in range(500)] == [*trained]


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_no_training_gives(seed: int, tmp_path: Path) -> None:
    """In any order, with tokens that merging never gives: only a piece that is one becomes it."""
    generator = random.Random(seed)
    alphabet = generator.choice(["a", "ab", "abc", "aé"])
    tokens = {*BYTES}
    for _ in range(40):
        text = "".join(generator.choices(alphabet, k=generator.randint(2, 9)))
        parts = generator.choices(sorted(tokens), k=2) if generator.random() < 0.1 else [b"", b""]
        tokens.add(generator.choice([text.encode(), b"".join(parts) or b"a"]))
    ranks = ranked(generator.sample(sorted(tokens), len(tokens)))
    write(tmp_path, ranks, pat_str=WORDS)
    tokenizer, theirs = tokenizer_of(tmp_path, len(ranks)), encoding_of(ranks, WORDS)
    for length in [*range(1, 30), 99, 100, 101, 300]:
        text = "".join(generator.choices(alphabet + " ", [9] * len(alphabet) + [1], k=length))
        assert tokenizer.encode(text).ids == theirs.encode_ordinary(text), text


def test_a_token_that_merging_does_not_give(tmp_path: Path) -> None:
    write(tmp_path, ranked([*BYTES, b"abc"]), pat_str=WORDS)
    tokenizer = tokenizer_of(tmp_path, 257)
    assert tokenizer.encode("abc").ids == [256]
    assert tokenizer.encode("abcd").ids == [*b"abcd"]


@pytest.mark.parametrize("name", ENCODINGS)
def test_published_encodings(name: str, definitions: dict[str, dict[str, Any]]) -> None:
    theirs, ours = definitions[name], ENCODINGS[name]
    assert ours.pattern == theirs["pat_str"]
    last = {token: content for content, token in reversed(theirs["special_tokens"].items())}
    assert {token: content for content, token in ours.special_tokens.items()} == last
    assert definitions.keys() == ENCODINGS.keys()


def pairs_of(texts: Iterable[str]) -> set[bytes]:
    return {text.encode()[i : i + 2] for text in texts for i in range(len(text.encode()) - 1)}


@pytest.mark.parametrize(
    "pattern",
    [
        *dict.fromkeys(encoding.pattern for encoding in ENCODINGS.values()),
        GPT2,
        LLAMA_3,
        KIMI,
        r"^\s+|\d{2}|(?:ab){2,}|\p{P}{2,3}+|[a-z]+?(?=[0-9])|(?<=[a-z])\.|[a-z]+$|\p{L}",
        r"[\u4e00-\u9fa5]+|[0-9A-Fa-f\-]{1,}|\$\.?|[^\u0000-\u007f]",
        r".",
    ],
    ids=lambda pattern: pattern[:20],
)
def test_patterns_split_as_in_tiktoken(pattern: str, tmp_path: Path) -> None:
    """All pairs of bytes are tokens, and prefer their first or their last neighbour, so that other
    pieces would have other tokens. What a pattern does not match is left out."""
    texts = [*TEXTS, *random_texts(300, seed=1)]
    pairs = sorted(pairs_of(texts))
    for order in (pairs, pairs[::-1]):
        ranks = ranked([*BYTES, *(pair for pair in order if len(pair) == 2)])
        write(tmp_path, ranks, pat_str=pattern)
        tokenizer, theirs = tokenizer_of(tmp_path, len(ranks)), encoding_of(ranks, pattern)
        for text in texts:
            assert tokenizer.encode(text).ids == theirs.encode_ordinary(text), text


SPECIAL = {"<s>": 3, "</s>": 258, "<mask>": 261}


def with_special_tokens(tokens: Iterable[bytes]) -> dict[bytes, int]:
    """Ranks, with a gap at 3."""
    return {token: rank + (rank >= 3) for token, rank in ranked(tokens).items()}


@pytest.mark.parametrize("merged", [[b"th"], [b"the"]], ids=["reachable", "unreachable"])
def test_special_tokens_have_the_ids_that_the_checkpoint_lists(
    merged: list[bytes], tmp_path: Path
) -> None:
    """Between the ranks and after them. In outputs they are left out."""
    ranks = with_special_tokens([*BYTES, *merged])
    write(tmp_path, ranks, pat_str=GPT2, added_tokens_decoder=added(SPECIAL, special=True))
    codec = codec_of(find(tmp_path, 262), tmp_path / "bundle")
    theirs = encoding_of(ranks, GPT2)
    for text in [*TEXTS, "<s>", "the</s>the <mask>", "<|reserved_token_259|>"]:
        assert codec.encode(text, split_special_tokens=True) == theirs.encode_ordinary(text)
    assert codec.encode("<s>the</s>") == [3, *theirs.encode_ordinary("the"), 258]
    assert codec.decode([3, ranks[b"a"], 258, 259, 260, ranks[b"b"], 261, 9999]) == "ab"
    written = Tokenizer.from_file(str(tmp_path / "bundle" / "tokenizer.json"))
    assert {name: written.token_to_id(name) for name in SPECIAL} == SPECIAL


def test_added_texts_are_tokens_in_texts(tmp_path: Path) -> None:
    texts = {"<tool>": 256, "日本": 257}
    settings = added(texts, special=False) | added({"<s>": 258}, special=True)
    write(tmp_path, ranked(BYTES), pat_str=WORDS, added_tokens_decoder=settings)
    codec = codec_of(find(tmp_path, 259), tmp_path / "bundle")
    assert codec.encode("a<tool>日本<s>") == [97, 256, 257, 258]
    tokens = codec.encode("a<tool>日本<s>", split_special_tokens=True)
    assert tokens == [97, 256, 257, *b"<s>"]
    assert codec.decode([*tokens, 258]) == "a<tool>日本<s>"


def test_an_encoding_by_its_name(definitions: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """As many ranks as it must have; special tokens where the vocabulary has room for them."""
    fill = (i.to_bytes(3, "big") for i in range(100_000))
    ranks = ranked([*BYTES, *fill])
    write(tmp_path, ranks, "cl100k_base.tiktoken", add_eos_token=True, eos_token=ENDOFTEXT)
    files = find(tmp_path, 100_270)
    assert isinstance(files.target, Tokenizer)
    special = definitions["cl100k_base"]["special_tokens"]
    found = {name: files.target.token_to_id(name) for name in special}
    assert found == special | {"<|endofprompt|>": None}
    assert files.template == SourceTemplate((), (special[ENDOFTEXT],))
    tokens = codec_of(files, tmp_path / "bundle").encode("1234 a \n  ")
    expected = encoding_of(ranks, definitions["cl100k_base"]["pat_str"])
    assert tokens == [*expected.encode_ordinary("1234 a \n  "), special[ENDOFTEXT]]


@pytest.mark.parametrize("other", ["<pad>", "<|reserved_token_50256|>"])
def test_what_the_checkpoint_lists_replaces_tokens_of_the_encoding(
    other: str, tmp_path: Path
) -> None:
    fill = (i.to_bytes(3, "big") for i in range(50_000))
    listed = {ENDOFTEXT: 50_257} | ({other: 50_256} if other == "<pad>" else {})
    write(tmp_path, ranked([*BYTES, *fill]), "gpt2.tiktoken", added_tokens_decoder=added(listed))
    tokenizer = tokenizer_of(tmp_path, 50_258)
    assert [tokenizer.id_to_token(token) for token in (50_256, 50_257)] == [other, ENDOFTEXT]


@pytest.mark.parametrize(
    ("name", "size", "vocabulary", "languages"),
    [
        ("gpt2", 50_256, 51_864, 99),
        ("multilingual", 50_257, 51_865, 99),
        ("multilingual", 50_257, 51_866, 100),
        ("multilingual", 50_257, 51_870, None),
    ],
)
def test_whisper(
    name: str, size: int, vocabulary: int, languages: int | None, tmp_path: Path
) -> None:
    """The empty token is one of its multilingual ranks."""
    fill = (i.to_bytes(3, "big") for i in range(size - 257))
    ranks = ranked([*BYTES, *fill, b""])
    write(tmp_path, ranks, f"{name}.tiktoken")
    path = tmp_path / f"{name}.tiktoken"
    path.write_bytes(path.read_bytes().replace(b"\n %d\n" % (size - 1), b"\n= %d\n" % (size - 1)))
    files = find(tmp_path, vocabulary, "whisper")
    assert files.source is None and isinstance(files.target, Tokenizer)
    codes = [*transformers.models.whisper.tokenization_whisper.LANGUAGES][: languages or 0]
    expected = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in codes)]
    expected += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    expected += ["<|nospeech|>", "<|notimestamps|>", *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]
    if languages is None:
        expected = []
    assert [files.target.id_to_token(i) for i in range(size, size + len(expected))] == expected
    assert files.target.get_vocab_size() == size + len(expected)
    codec = codec_of(files, tmp_path / "bundle")
    tokens = [size + 1, *range(size + 100, size + 108), *b"hello", size - 1, size]
    assert codec.decode(tokens) == "hello"


def test_bart(trained: dict[bytes, int], tmp_path: Path) -> None:
    """A text is enclosed in its tokens, as with its own files."""
    special = {"<s>": 500, "<pad>": 501, "</s>": 502, "<unk>": 503}
    write(tmp_path, trained, "tiktoken.model", pat_str=GPT2, added_tokens_decoder=added(special))
    codec = codec_of(find(tmp_path, 504, "bart"), tmp_path / "bundle")
    theirs = encoding_of(trained, GPT2)
    for text in filter(None, TEXTS):
        tokens = codec.encode(text, split_special_tokens=True)
        assert tokens == [500, *theirs.encode_ordinary(text), 502]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pat_str": GPT2}))
    with pytest.raises(DragomanError, match="expected a token '</s>', found none"):
        find(tmp_path, 504, "bart")


def test_languages(tmp_path: Path) -> None:
    special = {"</s>": 256, "de_DE": 257, "fr_XX": 258}
    decoder = added(special)
    write(tmp_path, ranked(BYTES), pat_str=WORDS, src_lang="de_DE", added_tokens_decoder=decoder)
    files = find(tmp_path, 259, "mbart")
    assert files.languages is not None and files.languages.tokens == {"de_DE": 257, "fr_XX": 258}
    codec = codec_of(files, tmp_path / "bundle")
    assert codec.encode("a") == [97, 256, 257]
    assert codec.encode("a", "fr_XX") == [97, 256, 258]


def test_other_files_come_first(trained: dict[bytes, int], tmp_path: Path) -> None:
    write(tmp_path, trained, pat_str=GPT2)
    tokenizer_of(tmp_path, 500).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "ours.tiktoken").write_text("damaged")
    assert find(tmp_path, 500).target == tmp_path / "tokenizer.json"
