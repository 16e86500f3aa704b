"""Loose, missing or wrong statements of checkpoints about their tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman import DragomanError
from dragoman.export.families import ENCODER_FAMILIES, FAMILIES
from dragoman.export.families.ctranslate2.text import find_text_tokenizers
from dragoman.export.families.hugging_face import find_hugging_face_tokenizers, tokenizer_kinds
from dragoman.export.formats.json_files import read_json_if_present
from dragoman.export.tokenizers import TokenizerCheckpoint, TokenizerFiles, choose_kind
from dragoman.runtime.format.texts import SourceTemplate


def text_tokenizers(
    directory: Path, rows: Mapping[str, int] | None = None
) -> TokenizerFiles | None:
    """The tokenizers of a directory of CTranslate2."""
    config = read_json_if_present(directory / "config.json")
    return find_text_tokenizers(directory, config, rows or {})


PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁a"]


def library(directory: Path, *languages: str, bpe: bool = False) -> None:
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    if bpe:
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([*PIECES[:4], *languages])
    tokenizer.save(str(directory / "tokenizer.json"))


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def find(
    directory: Path, model_type: str, values: dict[str, Any] | None = None
) -> TokenizerFiles | None:
    return find_hugging_face_tokenizers(
        directory, FAMILIES[model_type], values or {}, source_vocab_size=9, target_vocab_size=9
    )


GENERIC = [
    None,
    "PreTrainedTokenizer",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "SentencePieceBackend",
    "OurTokenizer",
    ["?"],
]
PREFIX, SUFFIX = (
    SourceTemplate(("source_language",), (2,)),
    SourceTemplate((), (2, "source_language")),
)


@pytest.mark.parametrize("stated", GENERIC, ids=str)
@pytest.mark.parametrize(
    ("model_type", "languages", "codes", "template"),
    [
        ("m2m_100", ("deu_Latn", "fra_Latn"), ("deu_Latn", "fra_Latn"), PREFIX),
        ("m2m_100", ("__de__", "__fr__"), ("de", "fr"), PREFIX),
        ("mbart", ("de_DE", "fr_XX"), ("de_DE", "fr_XX"), SUFFIX),
    ],
)
def test_a_class_that_does_not_tell_leaves_it_to_the_model(
    stated: object,
    model_type: str,
    languages: tuple[str, ...],
    codes: tuple[str, ...],
    template: SourceTemplate,
    tmp_path: Path,
) -> None:
    library(tmp_path, *languages)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": stated})
    files = find(tmp_path, model_type)
    assert files is not None and files.languages is not None
    assert files.languages.tokens == {codes[0]: 5, codes[1]: 6}
    assert files.template == template


@pytest.mark.parametrize("stated", ["NllbTokenizer", "NllbTokenizerFast"])
def test_the_suffix_fast_does_not_change_the_kind(stated: str, tmp_path: Path) -> None:
    library(tmp_path, "deu_Latn", bpe=True)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": stated})
    files = find(tmp_path, "bart")
    assert files is not None and files.languages is not None


@pytest.mark.parametrize("model_type", ["mbart", "m2m_100"])
def test_a_generic_class_without_languages_is_of_one_language(
    model_type: str, tmp_path: Path
) -> None:
    library(tmp_path)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    files = find(tmp_path, model_type)
    assert files is not None and files.languages is None and files.template is None


@pytest.mark.parametrize("stated", GENERIC, ids=str)
@pytest.mark.parametrize("model_type", ["bart", "whisper"])
def test_vocabulary_and_merges_are_not_lost(
    model_type: str, stated: object, tmp_path: Path
) -> None:
    write(tmp_path / "vocab.json", {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4})
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": stated})
    files = find(tmp_path, model_type)
    assert files is not None and isinstance(files.target, Tokenizer)
    assert files.target.encode("ab", add_special_tokens=False).ids == [4]
    assert (files.source is None) == (model_type == "whisper")


def find_of_encoder(
    directory: Path, model_type: str, values: dict[str, Any] | None = None
) -> TokenizerFiles | None:
    checkpoint = TokenizerCheckpoint(directory, values or {}, 9, 9)
    family = ENCODER_FAMILIES[model_type]
    return choose_kind(checkpoint, family.tokenizers, tokenizer_kinds()).read(checkpoint)


UNKNOWN = ["BertJapaneseTokenizer", "BertJapaneseTokenizerFast", "OurTokenizer"]
WORD_PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n"


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("stated", UNKNOWN)
def test_pieces_of_an_unknown_class_are_refused(stated: str, file: str, tmp_path: Path) -> None:
    """Without MeCab, Japanese would be split at other places."""
    (tmp_path / "vocab.txt").write_text(WORD_PIECES)
    values = {"tokenizer_class": stated}
    if file == "tokenizer_config.json":
        write(tmp_path / file, values)
        values = {}
    name = stated.removesuffix("Fast")
    with pytest.raises(DragomanError, match=rf"expected tokenizer\.json, .*class '{name}' is unk"):
        find_of_encoder(tmp_path, "bert", values)


@pytest.mark.parametrize(
    "stated", [None, "BertTokenizer", "DistilBertTokenizerFast", *GENERIC[1:5]]
)
def test_pieces_of_a_known_or_generic_class_are_read(stated: object, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(WORD_PIECES)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": stated})
    files = find_of_encoder(tmp_path, "bert")
    assert files is not None and isinstance(files.source, Tokenizer)
    assert files.source.encode("a").ids == [2, 5, 3]


@pytest.mark.parametrize("stated", [*GENERIC, *UNKNOWN], ids=str)
@pytest.mark.parametrize("model_type", ENCODER_FAMILIES)
def test_a_library_file_of_any_class_is_read(
    model_type: str, stated: object, tmp_path: Path
) -> None:
    library(tmp_path)
    (tmp_path / "vocab.txt").write_text(WORD_PIECES)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": stated})
    files = find_of_encoder(tmp_path, model_type)
    assert files is not None and files.source == tmp_path / "tokenizer.json"


def test_an_unknown_class_without_files(tmp_path: Path) -> None:
    """There is nothing to be misread: the bundle takes token ids."""
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "OurTokenizer"})
    assert find_of_encoder(tmp_path, "bert") is None


def test_a_damaged_sentencepiece_model_of_an_encoder(tmp_path: Path) -> None:
    assert find_of_encoder(tmp_path, "xlm-roberta") is None
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"pieces")
    with pytest.raises(
        DragomanError, match=r"sentencepiece\.bpe\.model: not a SentencePiece model"
    ):
        find_of_encoder(tmp_path, "xlm-roberta")
    library(tmp_path)
    assert find_of_encoder(tmp_path, "xlm-roberta") is not None


@pytest.mark.parametrize("size", [None, "many", 3], ids=str)
def test_the_size_is_that_of_the_model(size: object, tmp_path: Path) -> None:
    """What config.json states about the size does not matter."""
    library(tmp_path)
    assert find(tmp_path, "bart", {} if size is None else {"vocab_size": size})
    with pytest.raises(DragomanError, match=r"expected token ids in \[0, 4\)"):
        find_hugging_face_tokenizers(
            tmp_path, FAMILIES["bart"], {}, source_vocab_size=9, target_vocab_size=4
        )


@pytest.mark.parametrize(
    ("stated", "default"),
    [
        (6, "fr"),
        ([6], "fr"),
        ([5, 6], None),
        ([], None),
        ([[6]], None),
        ("6", None),
        ({"id": 6}, None),
        (True, None),
        (6.0, None),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("model_type", "name", "pattern"),
    [
        ("m2m_100", "forced_bos_token_id", "__{}__"),
        ("mbart", "forced_bos_token_id", "{0}_XX"),
        ("mbart", "decoder_start_token_id", "{0}_XX"),
    ],
)
def test_a_token_may_be_a_list_of_one(
    stated: object, default: str | None, model_type: str, name: str, pattern: str, tmp_path: Path
) -> None:
    library(tmp_path, pattern.format("en"), pattern.format("fr"))
    files = find(tmp_path, model_type, {name: stated})
    assert files is not None and files.languages is not None
    expected = None if default is None else pattern.format(default).strip("_")
    assert files.languages.default_target == expected


@pytest.mark.parametrize("value", [None, 3, ["</s>"], {"content": "</s>"}], ids=str)
@pytest.mark.parametrize("name", ["unk_token", "bos_token", "eos_token"])
def test_special_tokens_of_ctranslate2_are_strings(
    name: str, value: object, tmp_path: Path
) -> None:
    write(tmp_path / "config.json", {name: value})
    write(tmp_path / "shared_vocabulary.json", PIECES)
    with pytest.raises(DragomanError, match=rf"config\.json: expected special tokens .*{name}: "):
        text_tokenizers(tmp_path)


@pytest.mark.parametrize(
    ("newline", "last"), [("\n", "a\r"), ("\r\n", "a"), ("\n", "a\u2028")], ids=repr
)
def test_lines_of_a_ctranslate2_vocabulary(newline: str, last: str, tmp_path: Path) -> None:
    """A token may end in a carriage return; if all do, the file was written on Windows."""
    tokens = [*PIECES, last, "__de__", "__fr__"]
    (tmp_path / "shared_vocabulary.txt").write_bytes("".join(t + newline for t in tokens).encode())
    library(tmp_path, last, "__de__", "__fr__")
    files = text_tokenizers(tmp_path)
    assert files is not None and files.languages is not None
    assert files.languages.tokens == {"de": 6, "fr": 7}
    assert files.template == PREFIX
