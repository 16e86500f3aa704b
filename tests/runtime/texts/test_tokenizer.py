"""Text to tokens and back, whole and in a stream."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman.reference_model import Transformer
from dragoman.reference_model.recipes import g2p_en
from dragoman.runtime import BundleError
from dragoman.runtime.texts.tokenizer import TextCodec, UnknownSymbolsError

CORPUS = [
    "the dragoman translates",
    "señor, naïve café",
    "привет мир",
    "你好世界",
    "😀😃 🇩🇪 👩‍👩‍👧",
]


@pytest.fixture
def letters(text_case: tuple[Transformer, Path]) -> TextCodec:
    """Letters in, words w3 to w22 out."""
    bundle = text_case[1]
    return TextCodec(bundle / "source_tokenizer.json", bundle / "target_tokenizer.json")


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Byte-level BPE with so few merges that symbols beyond ASCII are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=275,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def streamed(codec: TextCodec, tokens: list[int]) -> list[str]:
    stream = codec.stream()
    return [stream.step(token) for token in tokens]


def test_letters_are_encoded_with_the_token_the_model_expects(letters: TextCodec) -> None:
    assert letters.encode("abz") == [3, 4, 28, 2]
    assert letters.encode("  AbZ\n") == [3, 4, 28, 2]


def test_words_are_decoded_without_special_tokens(letters: TextCodec) -> None:
    assert letters.decode([3, 1, 22, 0, 7, 2]) == "w3 w22 w7"
    assert letters.decode([]) == ""


def test_words_are_streamed_one_by_one(letters: TextCodec) -> None:
    pieces = streamed(letters, [3, 1, 22, 7])
    assert pieces == ["w3", "", " w22", " w7"]
    assert "".join(pieces) == letters.decode([3, 1, 22, 7])


@pytest.mark.parametrize("text", ["", " ", "\n\t  "])
def test_a_text_of_special_tokens_alone_is_empty(letters: TextCodec, text: str) -> None:
    assert letters.encode(text) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a1b", "'1'"),
        ("né?né?!", "'é', '?', '!'"),
        ("1234567", "'1', '2', '3', '4', '5', ..."),
        ("a\x00b", r"'\x00'"),
        ("a\ud800b", r"'\ud800'"),
        ("\udcff\udcfe", r"'\udcff\udcfe'"),
    ],
)
def test_unknown_symbols_are_named(letters: TextCodec, text: str, named: str) -> None:
    with pytest.raises(UnknownSymbolsError) as caught:
        letters.encode(text)
    assert str(caught.value) == f"unknown to this model: {named}"


def test_a_lone_surrogate_is_unknown_to_every_tokenizer(byte_level: Path) -> None:
    with pytest.raises(UnknownSymbolsError, match=r"\\udc80"):
        TextCodec(byte_level, byte_level).encode("caf\udc80")


@pytest.mark.parametrize("text", [*CORPUS, " leading and trailing ", "not in the corpus: Ω≈ç√"])
def test_any_text_survives_a_round_trip(byte_level: Path, text: str) -> None:
    codec = TextCodec(byte_level, byte_level)
    tokens = codec.encode(text)
    assert codec.decode(tokens) == text
    assert "".join(streamed(codec, tokens)) == text


def test_a_symbol_of_several_tokens_is_streamed_when_it_is_complete(byte_level: Path) -> None:
    codec = TextCodec(byte_level, byte_level)
    tokens = codec.encode("😎")
    assert len(tokens) > 1, "the tokenizer should know no token for it"
    assert streamed(codec, tokens) == [""] * (len(tokens) - 1) + ["😎"]


def test_any_tokens_are_streamed_as_they_are_decoded(byte_level: Path) -> None:
    """Models also write bytes that are not UTF-8. Only an incomplete end is held back."""
    codec = TextCodec(byte_level, byte_level)
    generator = random.Random(0)
    complete = 0
    for _ in range(300):
        tokens = [generator.randrange(275) for _ in range(generator.randint(1, 12))]
        text, joined = codec.decode(tokens), "".join(streamed(codec, tokens))
        if text.endswith("\ufffd"):
            assert text.startswith(joined)
        else:
            assert joined == text
            complete += 1
    assert 50 < complete < 250


@pytest.mark.parametrize("whole_text", [True, False])
def test_bytes_are_streamed_when_their_run_ends(tmp_path: Path, *, whole_text: bool) -> None:
    """As of Llama: one byte that is none of a character makes all of its run U+FFFD."""
    pieces = ["</s>", "▁", "a", "▁a", *(f"<0x{byte:02X}>" for byte in range(256))]
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(ids, [("▁", "a")], byte_fallback=True))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence(
        [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        if whole_text
        else [decoders.ByteFallback(), decoders.Metaspace()]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = TextCodec(tmp_path / "tokenizer.json", tmp_path / "tokenizer.json")
    tokens = codec.encode("a😎 a")
    assert streamed(codec, tokens) == ["a", "", "", "", "", "😎 a"]
    assert streamed(
        codec, [ids["a"], ids["<0x41>"], ids["<0xE6>"], 0, ids["<0x41>"], ids["▁a"]]
    ) == [*("a", "", "", "", "", "\ufffd\ufffd\ufffd a")]
    generator = random.Random(0)
    some = [ids[p] for p in ("</s>", "▁", "a", "▁a", *(f"<0x{b:02X}>" for b in "A😎".encode()))]
    for _ in range(500):
        tokens = generator.choices(some, k=generator.randint(1, 12))
        stream = codec.stream()
        joined = "".join(stream.step(token) for token in tokens) + stream.rest()
        assert joined == codec.decode(tokens)


def test_two_streams_do_not_disturb_each_other(letters: TextCodec) -> None:
    one, two = letters.stream(), letters.stream()
    assert [one.step(3), two.step(4), one.step(5), two.step(6)] == ["w3", "w4", " w5", " w6"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"{", b"\x80\xff", b'{"version": "1.0", "model": {"type": "None"}}']
)
def test_a_corrupt_tokenizer_file_is_a_bundle_error(
    tmp_path: Path, byte_level: Path, content: bytes
) -> None:
    corrupt = tmp_path / "corrupt.json"
    corrupt.write_bytes(content)
    for files in ((corrupt, byte_level), (byte_level, corrupt)):
        with pytest.raises(BundleError, match=r"corrupt\.json: not a tokenizer file"):
            TextCodec(*files)


@pytest.mark.parametrize("text", ["<s>", "</s>", "a</s>b", "<pad>"])
def test_a_special_token_that_is_typed(tmp_path: Path, text: str) -> None:
    source = g2p_en.make_source_tokenizer()
    source.enable_truncation(2)
    source.enable_padding(length=8)
    source.save(str(tmp_path / "source.json"))
    g2p_en.make_target_tokenizer().save(str(tmp_path / "target.json"))
    codec = TextCodec(tmp_path / "source.json", tmp_path / "target.json")
    with pytest.raises(UnknownSymbolsError, match="<"):
        codec.encode(text, split_special_tokens=True)
    letters = {"a": [3], "b": [4], "<s>": [1], "</s>": [2], "<pad>": [0]}
    parts = re.findall(r"<[^>]*>|.", text)
    assert codec.encode(text) == [*(i for part in parts for i in letters[part]), 2]
    assert codec.encode("abc") == [3, 4, 5, 2]  # neither cut nor padded
