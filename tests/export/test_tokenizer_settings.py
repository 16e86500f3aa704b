"""Settings beside a vocabulary, one by one: ids and texts are as in `transformers`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers as typed_transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman.export.families import ENCODER_FAMILIES, FAMILIES
from dragoman.export.families.hugging_face import tokenizer_kinds
from dragoman.export.tokenizers import TokenizerCheckpoint, choose_kind
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.runtime.texts.tokenizer import TextCodec

transformers: Any = typed_transformers

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")

CORPUS = [
    *["The quick brown fox jumps over the lazy dog."] * 3,
    *["Héllo Wörld, naïve café! 中文 字符 don't it's 12 345"] * 3,
    *["hello world this is a text with some words . , ! ?"] * 3,
]
TEXTS = [
    *("Hello World", "héllo CAFÉ naïve", "中文字符 text", " leads  two  spaces ", "", "  "),
    *("a [SEP] b", "a<s>b </s> c", "<pad><unk> x", "x <mask> y", "<mask>", "EN_xx en_XX a"),
    *("[MASK] [E1] [e1] a[E1]b  [E1] c", "<sep>a <sep> b", "<|user|> hi<|end|>", "▁a ▁"),
    *("a <extra_id_0> b <extra_id_99>", "<triplet> A <subj> B <obj> C", "don't , it's . !"),
    *("new_tok1 new_tok1s anew_tok1, new_tok1", "tab\there\nline\r\n", "\u00a0e\u0301 ﬁ"),
    *(">>fra<< a", ">>fra<<a </s> b", "__en__ a"),
]
FLAGS: list[dict[str, bool]] = [
    *({}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}),
    *({"special": True}, {"lstrip": True, "rstrip": True, "special": True}),
]


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **plain, **flags}


def settings(size: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Fields of tokenizer_config.json, and other files by name.

    Args:
        size: size of the vocabulary
    """
    yield {}, {}
    for name in (
        *("do_lower_case", "tokenize_chinese_chars", "add_prefix_space", "add_bos_token"),
        *("add_eos_token", "clean_up_tokenization_spaces", "trim_offsets"),
    ):
        for value in (True, False):
            yield {name: value}, {}
    for strips in (True, False):
        yield {"strip_accents": strips, "do_lower_case": not strips}, {}
    for flags in FLAGS:
        contents = ("[E1]", "<triplet>", "<sep>", "new_tok1")
        added = {str(size + i): token(content, **flags) for i, content in enumerate(contents)}
        yield {"added_tokens_decoder": added}, {}
    yield {"additional_special_tokens": ["<sep>", "<|user|>"]}, {}
    yield {"extra_special_tokens": ["<sep>"]}, {}
    yield {"extra_special_tokens": {"image_token": "<triplet>"}}, {}
    yield {"image_token": "<subj>", "pad_token": "[PAD9]", "mask_token": "<mask>"}, {}
    added_tokens = {"added_tokens.json": {"[E1]": size, "<sep>": size + 1}}
    yield {}, added_tokens
    listed = {"additional_special_tokens": ["<sep>"]}
    yield {}, {**added_tokens, "special_tokens_map.json": listed}
    yield {}, {"special_tokens_map.json": {"mask_token": token("<mask>", lstrip=True)}}
    yield {}, {"special_tokens_map.json": {"extra_special_tokens": ["<sep>"], "pad_token": "<p>"}}


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, *map(str.lower, CORPUS)], trainer)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def byte_level(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150,
        special_tokens=list(special),
        unk_token="<unk>",  # noqa: S106
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
LIBRARY: dict[str, Callable[[], Tokenizer]] = {
    "bert": word_piece,
    "roberta": lambda: byte_level(*FAIRSEQ),
    "bart": lambda: byte_level(*FAIRSEQ),
    "gpt2": lambda: byte_level("<|endoftext|>"),
    "t5": lambda: unigram("<pad>", "</s>", "<unk>"),
    "xlm-roberta": lambda: unigram(*FAIRSEQ),
    "mbart": lambda: unigram(*FAIRSEQ, "en_XX", "ro_RO"),
    "pegasus": lambda: unigram("<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk>"),
}


def write(directory: Path, content: dict[str, Any]) -> None:
    directory.mkdir()
    for name, values in content.items():
        (directory / name).write_text(json.dumps(values))


def codec_of(directory: Path, model_type: str) -> TextCodec:
    checkpoint = TokenizerCheckpoint(directory, {"model_type": model_type}, 600, 600)
    family = FAMILIES.get(model_type) or ENCODER_FAMILIES[model_type]
    files = choose_kind(checkpoint, family.tokenizers, tokenizer_kinds()).read(checkpoint)
    assert files is not None
    written = directory / "written"
    written.mkdir()
    return TextCodec.of(files.write(ScratchWriter(written)), written, files.languages)


LANGUAGES = {"mbart": "en_XX", "m2m_100": "en"}


def assert_same(directory: Path, model_type: str) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = codec_of(directory, model_type)
    for text in TEXTS:
        empty = not theirs(text, add_special_tokens=False).input_ids
        expected = [] if empty else theirs(text).input_ids
        found = ours.encode(text, LANGUAGES.get(model_type))
        assert found == expected, text
        found = found[model_type == "m2m_100" :]  # the language, which transformers 5 shows
        for skip in (True, False):
            decoded = theirs.decode(found, skip_special_tokens=skip)
            assert ours.decode(found, skip_special_tokens=skip) == decoded, text
            stream = ours.stream(skip_special_tokens=skip)
            assert "".join(map(stream.step, found)) + stream.rest() == decoded, text


@pytest.mark.parametrize("model_type", LIBRARY)
def test_tokenizer_json_and_the_files_beside_it(model_type: str, tmp_path: Path) -> None:
    trained = LIBRARY[model_type]()
    size = trained.get_vocab_size()
    with_tokens = Tokenizer.from_str(trained.to_str())
    with_tokens.add_tokens([AddedToken("[E1]", normalized=False)])
    with_tokens.add_special_tokens([AddedToken("<sep>", normalized=False)])
    classes = [{}, {"tokenizer_class": "PreTrainedTokenizerFast"}]
    for number, (config, files) in enumerate(settings(size)):
        for tokenizer in (trained, with_tokens):
            # A class that uses the file as it is knows no languages.
            for stated in classes[: 1 if number % 4 or model_type == "mbart" else 2]:
                directory = tmp_path / f"{number}{tokenizer is trained}{len(stated)}"
                content = {"config.json": {"model_type": model_type}, **files}
                write(directory, {**content, "tokenizer_config.json": {**config, **stated}})
                tokenizer.save(str(directory / "tokenizer.json"))
                assert_same(directory, model_type)
                shutil.rmtree(directory)


@pytest.mark.parametrize("stated", [{}, {"pad_token": "<unk>"}, {"pad_token": None}])
def test_the_token_of_the_padding_is_special(stated: dict[str, Any], tmp_path: Path) -> None:
    trained = byte_level("<pad>", "<unk>")
    trained.enable_padding(pad_id=320, pad_token="<sep>")  # noqa: S106
    directory = tmp_path / "saved"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "extra_special_tokens": ["[E1]"]}
    content = {"config.json": {"model_type": "gpt2"}, "tokenizer_config.json": config | stated}
    write(directory, content)
    trained.save(str(directory / "tokenizer.json"))
    assert_same(directory, "gpt2")


def pieces_of(model: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    models_of: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("fairseq", "unigram", {}),
        ("bpe", "bpe", {}),
        ("t5", "unigram", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    )
    for name, kind, ids in models_of:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3),
            model_prefix=str(directory / name),
            model_type=kind,
            vocab_size=110,
            character_coverage=0.998,
            hard_vocab_limit=False,
            minloglevel=2,
            **ids,
        )
    byte_level(*FAIRSEQ).model.save(str(directory))
    vocabulary = word_piece().get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    pieces = pieces_of(directory / "fairseq.model")
    numbered = ["</s>", "<unk>", *pieces[3:], ">>fra<<", "<pad>"]
    (directory / "marian.json").write_text(json.dumps({p: i for i, p in enumerate(numbered)}))
    numbered = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(directory / "bpe.model")[3:]]
    (directory / "m2m_100.json").write_text(json.dumps({p: i for i, p in enumerate(numbered)}))
    return directory


WITHOUT_LIBRARY: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "bert": ({"vocab.txt": "vocab.txt"}, {}),
    "roberta": ({"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, {}),
    "gpt2": ({"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, {}),
    "t5": ({"spiece.model": "t5.model"}, {}),
    "mt5": ({"spiece.model": "t5.model"}, {"extra_ids": 0}),
    "pegasus": ({"spiece.model": "t5.model"}, {}),
    "mbart": ({"sentencepiece.bpe.model": "fairseq.model"}, {}),
    "xlm-roberta": ({"sentencepiece.bpe.model": "fairseq.model"}, {}),
    "marian": (
        dict.fromkeys(("source.spm", "target.spm"), "fairseq.model")
        | {"vocab.json": "marian.json"},
        {"source_lang": "en", "target_lang": "fr"},
    ),
    "m2m_100": (
        {"sentencepiece.bpe.model": "bpe.model", "vocab.json": "m2m_100.json"},
        {"src_lang": "en"},
    ),
}
"""Files of a vocabulary by their names in a checkpoint, and settings."""


@pytest.mark.parametrize("model_type", WITHOUT_LIBRARY)
def test_other_vocabularies_and_the_files_beside_them(
    model_type: str, trained: Path, tmp_path: Path
) -> None:
    names, stated = WITHOUT_LIBRARY[model_type]
    first = next(iter(names.values()))
    size = len(pieces_of(trained / first)) + 120 if first.endswith("model") else 0
    size = (
        len(json.loads((trained / names["vocab.json"]).read_text()))
        if "vocab.json" in names
        else size
    )
    size = size or len((trained / first).read_text().splitlines())
    listed = {"special_tokens_map.json": {"additional_special_tokens": ["<sep>"]}}
    for number, (config, files) in enumerate([*settings(size), ({}, listed)]):
        if model_type == "pegasus" and "extra_special_tokens" in config:
            continue  # not loaded by transformers
        directory = tmp_path / str(number)
        content = {"config.json": {"model_type": model_type}, **files}
        write(directory, {**content, "tokenizer_config.json": {**stated, **config}})
        for name, source in names.items():
            shutil.copyfile(trained / source, directory / name)
        assert_same(directory, model_type)
        shutil.rmtree(directory)


PIECES_THAT_TIE = (("▁", -1.0), (".", -5.31), ("..", -0.7), ("...", -1.12))


def test_a_tie_of_a_unigram_model_goes_as_in_transformers(tmp_path: Path) -> None:
    """Of splits of equal scores, SentencePiece, which sums in another precision, takes others."""
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    kind = proto.SentencePiece.Type
    for piece, score, of in (
        *(("<pad>", 0.0, kind.CONTROL), ("</s>", 0.0, kind.CONTROL), ("<unk>", 0.0, kind.UNKNOWN)),
        *((piece, score, kind.NORMAL) for piece, score in PIECES_THAT_TIE),
    ):
        proto.pieces.add(piece=piece, score=score, type=of)
    proto.trainer_spec.model_type = 1
    proto.trainer_spec.pad_id, proto.trainer_spec.eos_id = 0, 1
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id = 2, -1
    saved = tmp_path / "saved"
    write(saved, {"config.json": {"model_type": "t5"}})
    (saved / "spiece.model").write_bytes(proto.SerializeToString())
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(saved / "spiece.model"))
    ours = codec_of(saved, "t5")
    differ = 0
    for text in ["." * count for count in range(1, 16)]:
        expected = theirs(text).input_ids
        assert ours.encode(text) == expected, text
        differ += processor.encode(text) != expected[:-1]
    assert differ
