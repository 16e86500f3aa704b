"""Damaged tokenizer files are refused before anything is exported."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman import DragomanError
from dragoman.export.families import FAMILIES
from dragoman.export.families.hugging_face import find_hugging_face_tokenizers
from dragoman.export.tokenizers import TokenizerFiles

CORPUS = ["the cat sat on the mat", "a cat, a dog and the bird"] * 20
Change = Callable[[Path], object]


def find(
    directory: Path, model_type: str, values: Mapping[str, object] | None = None, size: int = 500
) -> TokenizerFiles | None:
    return find_hugging_face_tokenizers(
        directory,
        FAMILIES[model_type],
        values or {},
        source_vocab_size=size,
        target_vocab_size=size,
    )


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(prefix),
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return prefix.with_suffix(".model").read_bytes()


def write(name: str, content: object) -> Change:
    def change(directory: Path) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text)

    return change


def remove(name: str) -> Change:
    return lambda directory: (directory / name).unlink()


VOCABULARY = {"</s>": 0, "<unk>": 1, "▁the": 2, "<s>": 3}


def library(directory: Path, *languages: str) -> None:
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["</s>", "<unk>", *languages])
    tokenizer.save(str(directory / "tokenizer.json"))


def broken_library(directory: Path) -> None:
    library(directory)
    path = directory / "tokenizer.json"
    splitter = {"type": "FixedLength", "length": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": splitter}))


def checkpoint(directory: Path, family: str, spm: bytes) -> None:
    """Fill a directory with the tokenizer files of a family."""
    if family == "marian":
        for name in ("source.spm", "target.spm"):
            (directory / name).write_bytes(spm)
        write("vocab.json", VOCABULARY)(directory)
    elif family == "m2m_100":
        (directory / "sentencepiece.bpe.model").write_bytes(spm)
        write("vocab.json", VOCABULARY)(directory)
    elif family == "bart":
        write("vocab.json", {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4})(directory)
        write("merges.txt", "#version: 0.2\na b\n")(directory)
    elif family == "t5":
        library(directory)
    elif family == "mbart":
        library(directory, "en_XX", "fr_XX")
    else:
        (directory / "spiece.model").write_bytes(spm)


@pytest.mark.parametrize("family", ["marian", "m2m_100", "bart", "t5", "mbart", "pegasus"])
def test_undamaged_they_are_found(family: str, spm: bytes, tmp_path: Path) -> None:
    assert find(tmp_path, family) is None
    checkpoint(tmp_path, family, spm)
    assert find(tmp_path, family)


DAMAGES: dict[str, tuple[str, Change, str]] = {
    "half of a pair": ("marian", remove("target.spm"), "expected target.spm beside source.spm"),
    "no vocabulary": ("marian", remove("vocab.json"), "expected vocab.json beside source.spm"),
    "no merges": ("bart", remove("merges.txt"), "expected merges.txt beside vocab.json"),
    "no model": (
        "m2m_100",
        remove("sentencepiece.bpe.model"),
        "expected sentencepiece.bpe.model beside vocab.json",
    ),
    "no second vocabulary": (
        "marian",
        write("tokenizer_config.json", {"separate_vocabs": True}),
        "expected target_vocab.json beside vocab.json",
    ),
    "not a model": ("marian", write("target.spm", "?"), "target.spm: not a SentencePiece model"),
    "not a tokenizer": ("t5", write("tokenizer.json", {}), "tokenizer.json: not a tokenizer file"),
    "not JSON": ("marian", write("vocab.json", "{"), "vocab.json: expected a JSON object"),
    "a list": ("marian", write("vocab.json", ["a"]), "vocab.json: expected a JSON object"),
    "no ids": ("marian", write("vocab.json", {"a": "b"}), "pieces and their token ids"),
    "no end token": ("marian", write("vocab.json", {"<unk>": 1}), "expected a token '</s>'"),
    "ids outside": (
        "marian",
        write("vocab.json", VOCABULARY | {"x": 500}),
        "vocab.json: expected token ids in [0, 500), the model's vocabulary, found 1 outside, such "
        "as 500 ('x')",
    ),
    "merges of others": (
        "bart",
        write("merges.txt", "#version: 0.2\nx y\n"),
        "merges.txt: not the merges of vocab.json",
    ),
    "merges longer than all tokens": (
        "bart",
        write("merges.txt", "#version: 0.2\n</s> ab\n"),
        "merges.txt: not the merges of vocab.json",
    ),
    "a tokenizer that fails when it is used": (
        "t5",
        broken_library,
        "tokenizer.json: fails when it is tried out: chunk size must be non-zero",
    ),
    "no languages": ("mbart", library, "tokenizer.json: expected the tokens of languages"),
    "settings not JSON": ("t5", write("tokenizer_config.json", "["), "tokenizer_config.json"),
    "a setting of another type": (
        "pegasus",
        write("tokenizer_config.json", {"offset": "many"}),
        "tokenizer_config.json: offset: expected an integer of at least 0, found 'many'",
    ),
    "added tokens without content": (
        "pegasus",
        write("tokenizer_config.json", {"added_tokens_decoder": {"3": {}}}),
        "added_tokens_decoder.3: expected a token with its content, found {}",
    ),
    "an added token by its name": (
        "pegasus",
        write("tokenizer_config.json", {"added_tokens_decoder": {"nine": {"content": "{"}}}),
        "tokenizer_config.json: added_tokens_decoder: expected tokens by their ids, found 'nine'",
    ),
    "a flag of an added token": (
        "pegasus",
        write(
            "tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "{", "lstrip": 1}}}
        ),
        "added_tokens_decoder.9: expected flags that are true or false, found {'content': '{'",
    ),
    "special tokens without a list": (
        "t5",
        write("special_tokens_map.json", {"additional_special_tokens": "<x>"}),
        "additional_special_tokens: expected a list of tokens, found '<x>'",
    ),
    "a special token that is a number": (
        "t5",
        write("tokenizer_config.json", {"eos_token": 1}),
        "tokenizer_config.json: eos_token: expected a token, found 1",
    ),
    "special tokens that are always text": (
        "t5",
        write("tokenizer_config.json", {"split_special_tokens": True}),
        "tokenizer_config.json: split_special_tokens: expected false, found true; calls have this",
    ),
    "random splits of texts": (
        "t5",
        write("tokenizer_config.json", {"sp_model_kwargs": {"enable_sampling": True}}),
        "tokenizer_config.json: sp_model_kwargs: expected none, found {'enable_sampling': True}",
    ),
    "ids that are no numbers": (
        "t5",
        write("added_tokens.json", {"<x>": "9"}),
        "added_tokens.json: <x>: expected a token id, found '9'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damages_are_named(damage: str, spm: bytes, tmp_path: Path) -> None:
    family, change, message = DAMAGES[damage]
    checkpoint(tmp_path, family, spm)
    change(tmp_path)
    with pytest.raises(DragomanError) as caught:
        find(tmp_path, family)
    assert message in str(caught.value)


def test_a_model_too_large_for_its_vocabulary(spm: bytes, tmp_path: Path) -> None:
    checkpoint(tmp_path, "pegasus", spm)
    with pytest.raises(DragomanError, match=r"spiece\.model: expected token ids in \[0, 120\)"):
        find(tmp_path, "pegasus", size=120)


def test_the_library_file_of_another_class_is_of_one_language(spm: bytes, tmp_path: Path) -> None:
    checkpoint(tmp_path, "mbart", spm)
    write("tokenizer_config.json", {"tokenizer_class": "BarthezTokenizer"})(tmp_path)
    with pytest.raises(
        DragomanError,
        match=r"tokenizer\.json: model: expected Unigram, because tokenizer_class is "
        r"BarthezTokenizer, found WordLevel; with PreTrainedTokenizerFast, the file is used",
    ):
        find(tmp_path, "mbart")
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})(tmp_path)
    assert find(tmp_path, "mbart") is not None


def test_default_languages_are_those_stated(spm: bytes, tmp_path: Path) -> None:
    checkpoint(tmp_path, "mbart", spm)
    english, french = len(VOCABULARY), len(VOCABULARY) + 1
    values: dict[str, object] = {}

    def defaults() -> tuple[str | None, str | None]:
        files = find(tmp_path, "mbart", values)
        assert files is not None and files.languages is not None
        return files.languages.default_source, files.languages.default_target

    assert defaults() == (None, None)
    values["decoder_start_token_id"] = french
    assert defaults() == (None, "fr_XX")
    write("generation_config.json", {"decoder_start_token_id": english})(tmp_path)
    assert defaults() == (None, "en_XX")
    settings = {"src_lang": "fr_XX", "tgt_lang": "fr_XX"}
    write("tokenizer_config.json", settings)(tmp_path)
    assert defaults() == ("fr_XX", "en_XX")
    write("generation_config.json", {})(tmp_path)
    values["decoder_start_token_id"] = 2
    assert defaults() == ("fr_XX", "fr_XX")
