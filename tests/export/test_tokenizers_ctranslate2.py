"""The tokenizers beside CTranslate2 models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dragoman import DragomanError
from dragoman.export.families.ctranslate2.text import find_text_tokenizers
from dragoman.export.families.ctranslate2.whisper import find_whisper_tokenizers
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec


def text_tokenizers(
    directory: Path, rows: Mapping[str, int] | None = None
) -> TokenizerFiles | None:
    """The tokenizers of a directory of CTranslate2."""
    config = read_json_if_present(directory / "config.json")
    return find_text_tokenizers(directory, config, rows or {})


CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?"] * 20
OPENNMT = {"decoder_start_token": "<s>", "add_source_eos": False}
MARIAN = {"decoder_start_token": "</s>"}


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(prefix),
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def pieces_of(spm: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def encoded(spm: Path, vocabulary: list[str], text: str) -> list[int]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    unknown = vocabulary.index("<unk>")
    return [
        vocabulary.index(piece) if piece in vocabulary else unknown
        for piece in processor.encode(text, out_type=str)
    ]


def model_directory(directory: Path, settings: dict[str, Any], **vocabularies: list[str]) -> Path:
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "config.json").write_text(json.dumps(tokens | settings))
    for name, vocabulary in vocabularies.items():
        (directory / f"{name}.json").write_text(json.dumps(vocabulary))
    return directory


def codec_of(files: TokenizerFiles | None, directory: Path) -> TextCodec:
    assert files is not None
    directory.mkdir()
    return TextCodec.of(files.write(ScratchWriter(directory)), directory, files.languages)


@pytest.mark.parametrize(
    ("settings", "prefix", "suffix"),
    [
        (OPENNMT, [], []),
        (OPENNMT | {"add_source_eos": True}, [], ["</s>"]),
        (OPENNMT | {"add_source_bos": True, "add_source_eos": True}, ["<s>"], ["</s>"]),
        (MARIAN, [], ["</s>"]),
        ({"decoder_start_token": "<pad>", "bos_token": "<pad>"}, [], ["</s>"]),
    ],
)
def test_special_tokens_match_training(
    spm: Path, tmp_path: Path, settings: dict[str, Any], prefix: list[str], suffix: list[str]
) -> None:
    vocabulary = ["<unk>", "<s>", "</s>", *reversed(pieces_of(spm)), "<pad>"]
    directory = model_directory(tmp_path, settings, shared_vocabulary=vocabulary)
    shutil.copyfile(spm, directory / "sentencepiece.model")
    files = text_tokenizers(directory)
    codec = codec_of(files, tmp_path / "bundle")
    around = [[vocabulary.index(token) for token in side] for side in (prefix, suffix)]
    for text in ("the cat", "Ω a dog", "</s> <pad>"):
        tokens = codec.encode(text)
        assert tokens == [*around[0], *encoded(spm, vocabulary, text), *around[1]]
    assert codec.decode(codec.encode("the cat, a dog")) == "the cat, a dog"
    assert codec.encode("") == []
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == [
        "sentencepiece.model",
        "vocabulary.json",
    ]


@pytest.mark.parametrize("extension", ["json", "txt"])
def test_two_vocabularies_and_two_models(spm: Path, tmp_path: Path, extension: str) -> None:
    source = ["</s>", "<unk>", *pieces_of(spm), ">>fra<<"]
    target = ["<unk>", *reversed(pieces_of(spm)), "</s>"]
    vocabularies = {"source_vocabulary": source, "target_vocabulary": target}
    if extension == "json":
        model_directory(tmp_path, MARIAN, **vocabularies)
    else:
        model_directory(tmp_path, MARIAN)
        for name, tokens in vocabularies.items():
            (tmp_path / f"{name}.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copyfile(spm, tmp_path / name)
    files = text_tokenizers(tmp_path)
    codec = codec_of(files, tmp_path / "bundle")
    cat = encoded(spm, source, "the cat")
    assert codec.encode("the cat") == [*cat, 0]
    assert codec.encode(">>fra<< the cat") == [len(source) - 1, *cat, 0]
    assert codec.decode([*encoded(spm, target, "a dog"), len(target) - 1]) == "a dog"
    assert files is not None and files.languages is None


@pytest.mark.parametrize(
    ("start", "languages", "target", "template"),
    [
        ("</s>", ["__en__", "__fr__"], "first", SourceTemplate(("source_language",), (2,))),
        ("</s>", ["eng_Latn", "fra_Latn"], "first", SourceTemplate(("source_language",), (2,))),
        ("</s>", ["en_XX", "fr_XX"], "first", SourceTemplate(("source_language",), (2,))),
        (None, ["en_XX", "fr_XX"], "start", SourceTemplate((), (2, "source_language"))),
    ],
)
def test_languages_are_tokens_of_the_vocabulary(
    spm: Path,
    tmp_path: Path,
    start: str | None,
    languages: list[str],
    target: str,
    template: SourceTemplate,
) -> None:
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(spm), *languages]
    settings = {"decoder_start_token": start}
    directory = model_directory(tmp_path, settings, shared_vocabulary=vocabulary)
    shutil.copyfile(spm, directory / "sentencepiece.bpe.model")
    files = text_tokenizers(directory)
    assert files is not None and files.languages is not None
    first = len(vocabulary) - 2
    codes = [language.strip("_") for language in languages]
    assert files.languages.tokens == {codes[0]: first, codes[1]: first + 1}
    assert (files.languages.target, files.template) == (target, template)
    codec = codec_of(files, tmp_path / "bundle")
    assert first in codec.encode("the cat", codes[0])
    assert codec.decode([first + 1, *encoded(spm, vocabulary, "a dog"), 2]) == "a dog"


def test_a_directory_without_any_vocabulary(tmp_path: Path) -> None:
    assert text_tokenizers(tmp_path) is None
    assert find_whisper_tokenizers(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("settings", "prefix", "suffix"),
    [
        (MARIAN, [], []),
        (MARIAN | {"add_source_eos": True}, [], [1]),
        (OPENNMT | {"add_source_bos": True, "add_source_eos": True}, [2], [1]),
    ],
)
def test_without_tokenizers_texts_are_tokens(
    tmp_path: Path, settings: dict[str, Any], prefix: list[int], suffix: list[int]
) -> None:
    """Split at spaces, and nothing else: a no-break space is one of the tokens."""
    vocabulary = ["<unk>", "</s>", "<s>", "\u00a0", "\uffeda", "Ab", "b"]
    files = text_tokenizers(model_directory(tmp_path, settings, shared_vocabulary=vocabulary))
    codec = codec_of(files, tmp_path / "bundle")
    assert files is not None and files.pretokenized and files.languages is None
    for text, expected in {
        "\u00a0 \uffeda Ab b": [3, 4, 5, 6],
        "  b \t b\r": [6, 6],
        "ab B <unk> b": [0, 0, 0, 6],
    }.items():
        assert codec.encode(text) == [*prefix, *expected, *suffix]
    assert codec.encode(" ") == []
    assert codec.decode([5, 0, 3, 4]) == "Ab <unk> \u00a0 \uffeda"
    assert codec.source_words("Ab zz b").words == ["Ab", "zz", "b"]
    assert codec.unknown_target == 0


def test_a_token_that_no_vocabulary_has_is_named(tmp_path: Path) -> None:
    vocabularies = {"source_vocabulary": ["</s>", "a", "b"], "target_vocabulary": ["</s>", "x"]}
    files = text_tokenizers(model_directory(tmp_path, OPENNMT, **vocabularies))
    codec = codec_of(files, tmp_path / "bundle")
    with pytest.raises(ValueError, match=r"^unknown to this model: 'c', '<unk>'$"):
        codec.encode("a c b <unk>")
    with pytest.raises(ValueError, match=r"^unknown to this model: 'a'$"):
        codec.encode_target("x a")


def test_whisper_shows_no_timestamps(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|en|>"])
    tokenizer.add_tokens([AddedToken(f"<|{i / 50:.2f}|>", normalized=False) for i in range(3)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = [*alphabet, "<|endoftext|>", "<|en|>", "<|0.00|>", "<|0.02|>", "<|0.04|>"]
    model_directory(tmp_path, {}, vocabulary=vocabulary)
    files = find_whisper_tokenizers(tmp_path, {})
    codec = codec_of(files, tmp_path / "bundle")
    text = tokenizer.encode(" ask not é").ids
    assert codec.decode([257, 258, *text, 259, 260, 256]) == " ask not é"

    model_directory(tmp_path, {}, vocabulary=vocabulary[:-1])
    with pytest.raises(DragomanError, match=r"tokenizer\.json: .* found 1 outside, such as 260"):
        find_whisper_tokenizers(tmp_path, {})


def test_damaged_files_are_reported(spm: Path, tmp_path: Path) -> None:
    directory = model_directory(tmp_path, MARIAN, shared_vocabulary=["<unk>", "a"])
    shutil.copyfile(spm, directory / "source.spm")
    with pytest.raises(DragomanError, match=r"expected a token '</s>', found none"):
        text_tokenizers(directory)
    model_directory(tmp_path, MARIAN, shared_vocabulary=["<unk>", "a", "</s>"])
    with pytest.raises(DragomanError, match=r"expected target\.spm beside source\.spm"):
        text_tokenizers(directory)
    (directory / "target.spm").write_bytes(b"not a model")
    with pytest.raises(DragomanError, match=r"target\.spm: not a SentencePiece model"):
        text_tokenizers(directory)
    (directory / "shared_vocabulary.json").write_text('{"a": 1}')
    with pytest.raises(DragomanError, match=r"shared_vocabulary\.json: expected a list of tokens"):
        text_tokenizers(directory)
