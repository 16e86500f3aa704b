"""Vocabularies: their options, those that exist already, and the characters that they lack.

The library sentencepiece is the oracle of its models, and counting by hand that of characters.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman import DragomanError
from dragoman.export.tokenizers import read_trainable
from dragoman.files.text_lines import UnknownCharacters
from dragoman.reference_model import load_checkpoint
from dragoman.reference_model.recipes import (
    Example,
    PairFiles,
    Recipe,
    read_initial_model,
    read_training_file,
    run_recipe,
)
from dragoman.reference_model.recipes.tokenizers import (
    SPECIAL_TOKENS,
    UNKNOWN,
    Vocabulary,
    count_unknown,
    train_tokenizers,
    write_tokenizers,
)
from dragoman.runtime.texts.tokenizer import TextCodec

EXAMPLES = [
    Example(f"the {animal} eats {food}, 2025 times.", (f"{animal} frisst {food}!", f"der {animal}"))
    for animal in ("cat", "dog", "otter", "badger", "mouse", "finch")
    for food in ("bread", "cheese", "nuts", "seeds", "fish")
]
UNSEEN = ["漢字 is ß", "😀 the <0x41> cat", "</s> <unk> Ω", "cat\u00e9", "<0x4a><0xC3>"]


@pytest.mark.parametrize(
    ("kind", "size", "tokenized"),
    [
        *(("bpe", 310, tokenized) for tokenized in (True, False)),
        *(("unigram", 288, tokenized) for tokenized in (True, False)),
        *(("characters", size, False) for size in (None, 275)),
    ],
)
def test_bytes_stand_for_what_the_vocabulary_lacks(
    tmp_path: Path, kind: Any, size: int | None, tokenized: bool
) -> None:
    vocabulary = Vocabulary(size=size, kind=kind, tokenized=tokenized, byte_fallback=True)
    tokenizers = train_tokenizers(vocabulary, EXAMPLES)
    tokenizer = tokenizers.source
    assert size is None or tokenizer.get_vocab_size() == size
    assert [tokenizer.id_to_token(n) for n in (3, 4, 259)] == ["<unk>", "<0x00>", "<0xFF>"]
    assert {tokenizer.token_to_id(letter) is not None for letter in "\u2581eats"} == {True}
    write_tokenizers(tokenizers, tmp_path)
    files = [tmp_path / f"{side}_tokenizer.json" for side in ("source", "target")]
    codec = TextCodec(*files)
    for text in UNSEEN:
        ids = tokenizer.encode(text).ids
        assert 3 not in ids and ids.count(2) == 1
        assert tokenizer.decode(ids) == text
        assert codec.encode(text, split_special_tokens=True) == ids
        assert codec.encode_source(text, split_special_tokens=True).unknown == ""
        stream = codec.stream()
        assert "".join(stream.step(token) for token in ids) + stream.rest() == text
    surfaces = codec.surfaces(tokenizer.get_vocab_size())
    assert [surfaces[4 + byte] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    emoji = tokenizer.encode("😀").ids
    assert [n - 4 for n in emoji if 4 <= n < 260] == [*"😀".encode()]


def test_coverage_leaves_out_the_rarest_characters() -> None:
    texts = [*["abab"] * 20, *["abXab"] * 2, "cabc", "Y"]
    examples = [Example(text, ()) for text in texts]
    assert Counter("".join(texts)) == {"a": 45, "b": 45, "X": 2, "c": 2, "Y": 1}
    kinds: list[tuple[Any, int | None]] = [("bpe", 9), ("characters", None)]
    for kind, size in kinds:
        some, _ = train_tokenizers(Vocabulary(size=size, kind=kind, coverage=0.97), examples)
        assert {letter for letter in some.get_vocab() if len(letter) == 1} == {*"\u2581abXc"}
        fewer, _ = train_tokenizers(Vocabulary(size=size, kind=kind, coverage=0.96), examples)
        assert {letter for letter in fewer.get_vocab() if len(letter) == 1} == {*"\u2581abX"}
        unknown = UnknownCharacters()
        count_unknown(some, ["Yab"], some.encode_batch(["Yab"]), unknown)
        assert (unknown.characters, dict(unknown.found)) == (3, {"Y": 1})


def test_no_subword_spans_a_character_that_is_left_out() -> None:
    examples = [Example("abXab", ())] * 9 + [Example("ab" * 50, ())]
    tokenizer, _ = train_tokenizers(Vocabulary(size=9, coverage=0.9), examples)
    whole, _ = train_tokenizers(Vocabulary(size=10), examples)
    assert "X" not in tokenizer.get_vocab() and "X" in whole.get_vocab()
    assert tokenizer.encode("abXab").offsets[-2] == (3, 5)
    assert [tokenizer.id_to_token(n) for n in tokenizer.encode("abXab").ids].count("<unk>") == 1


def test_digits_are_apart() -> None:
    together, _ = train_tokenizers(Vocabulary(size=60), EXAMPLES)
    apart, _ = train_tokenizers(Vocabulary(size=60, split_digits=True), EXAMPLES)
    assert "\u25812025" in together.get_vocab()
    assert apart.encode("in 2025,").tokens[-7:] == ["\u2581", "2", "0", "2", "5", ",", "</s>"]
    assert apart.decode(apart.encode("cat 2025").ids) == "cat 2025"


def test_sides_of_unequal_sizes() -> None:
    vocabulary = Vocabulary(size=60, target_size=45, shared=False)
    source, target = train_tokenizers(vocabulary, EXAMPLES)
    assert (source.get_vocab_size(), target.get_vocab_size()) == (60, 45)
    vocabulary = Vocabulary(source_size=60, target_size=45, shared=False, kind="characters")
    source, target = train_tokenizers(vocabulary, EXAMPLES)
    letters = {letter for example in EXAMPLES for letter in example.source} - {" "}
    assert source.get_vocab().keys() == letters | {*SPECIAL_TOKENS, "\u2581"}
    assert target.get_vocab_size() < 45


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"source_size": 60}, "source_size and target_size: expected none for one vocabulary"),
        ({"source_size": 60, "shared": False}, "missing field 'target_size'"),
        ({"target_size": 60, "shared": False}, "missing field 'source_size'"),
        ({"shared": False}, "missing field 'size'"),
        ({"size": 260, "byte_fallback": True}, "size: expected more than 260 with the tokens of "),
        ({"size": 60, "coverage": 0}, "coverage: expected more than 0 and at most 1, found 0"),
        ({"size": 60, "coverage": 1.5}, "coverage: expected more than 0 and at most 1, found 1.5"),
        (
            {"size": 100, "source_size": 60, "target_size": 45, "shared": False},
            "^size: expected none with source_size and target_size, found 100",
        ),
        ({"kind": "characters", "tokenized": True}, "tokenized: expected false, because each char"),
        ({"kind": "characters", "split_digits": True}, "split_digits: expected false, because "),
        ({"kind": "characters", "size": 4}, "size: expected more than 4, found 4"),
        ({"files": ("a",), "size": 60}, "size: expected none with `files`, found 60"),
        ({"files": ("a",), "coverage": 0.5}, "coverage: expected none with `files`, found 0.5"),
        ({"files": ("a", "b"), "shared": True}, "files: expected one file, because shared is true"),
        ({"files": ("a",), "shared": False}, "files: expected two files, because shared is false"),
        ({"files": ("a", "b", "c")}, "files: expected one, or two for source and target, found 3"),
        ({"files": "a"}, "files must be a list of str, found 'a'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DragomanError, match=problem):
        Vocabulary(**fields)


@pytest.mark.parametrize("kind", ["characters", "bpe", "unigram"])
def test_tokens_of_bytes_and_prefixes_count_in_the_size(kind: Any) -> None:
    prefixes = ["<1>", "<2>", "<3>"]
    vocabulary = Vocabulary(kind=kind, size=263, byte_fallback=True)
    expected = "expected more than 263 tokens for both sides, .* found 263; choose a larger size"
    with pytest.raises(DragomanError, match=f"vocabulary: {expected}"):
        train_tokenizers(vocabulary, EXAMPLES, prefixes)
    vocabulary = Vocabulary(kind="characters", size=264, byte_fallback=True)
    assert train_tokenizers(vocabulary, EXAMPLES, prefixes).source.get_vocab_size() == 264


CORPUS = [
    "The interpreter (dragoman) said: “Go, 2025 times!” — and went.",
    "naïve café: où ? 漢字 ﬁne ½ Straße x\u00a0y\u3000z\t1",
    "{'model': ['tiny', 'base'], 'size': 8_000} // a/b/c, e\u0301\u0301 \U0001f600",
] * 5 + [f"line {number} of the text has number {number * 37}" for number in range(60)]
TEXTS = [
    *CORPUS,
    *("", " ", "  two  spaces  ", "\ttabs\nand\r\nlines ", "\u2581marks \u2581", "ЖЯ Ж unknown Я"),
    *("</s> <s> x<unk>", "<0x41>", "x" * 300, "İı ﷺ ㍿", "\u200bzero\u200dwidth", "ctl\x01\x00"),
    *("Tie\u0302\u0301ng Vie\u0323\u0302t", "\u1112\u1161\u11ab \u212b"),
    *("<2de> go <sep>on<2de>", " <sep> x", "a <2de>"),
]
KINDS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},
    "byte pairs": {"model_type": "bpe"},
    "characters": {"model_type": "char"},
    "byte pairs and bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420},
    "unigram and bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 420},
    "symbols": {"model_type": "bpe", "user_defined_symbols": ["<2de>", "<sep>"]},
    "symbols of unigram": {"model_type": "unigram", "user_defined_symbols": ["<2de>", "<sep>"]},
    "identity": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "lower case": {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf"},
    "all spaces": {"model_type": "bpe", "remove_extra_whitespaces": False},
    "no prefix": {"model_type": "unigram", "add_dummy_prefix": False},
    "across words": {"model_type": "bpe", "split_by_whitespace": False},
    "other ids": {"model_type": "bpe", "pad_id": 3, "bos_id": -1, "eos_id": 0, "unk_id": 2},
}


def trained(directory: Path, **options: Any) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "own"),
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 150, "character_coverage": 0.995, **options},
    )
    return directory / "own.model"


@pytest.mark.parametrize("kind", KINDS)
def test_sentencepiece_models_give_the_tokens_of_their_library(tmp_path: Path, kind: str) -> None:
    path = trained(tmp_path, **KINDS[kind])
    tokenizer = read_trainable(path)
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [library.id_to_piece(n) for n in range(library.get_piece_size())]
    new = {n: tokenizer.get_vocab()[piece] for n, piece in enumerate(pieces)}
    assert {new[library.unk_id()], new[library.eos_id()]} == {2, 3}
    padding, start = library.pad_id() >= 0, library.bos_id() >= 0
    assert tokenizer.get_vocab_size() == len(pieces) + (not padding) + (not start)
    tokenizer.save(str(tmp_path / "saved.json"))
    codec = TextCodec(tmp_path / "saved.json", tmp_path / "saved.json")
    unknown = UnknownCharacters()
    for text in TEXTS:
        expected = [new[n] for n in library.encode(text)]
        assert tokenizer.encode(text).ids == [*expected, 2], text
        found = codec.encode(text, split_special_tokens=True)
        assert found == ([*expected, 2] if expected else [])
        if 3 not in expected:
            assert tokenizer.decode(expected) == library.decode(library.encode(text))
        count_unknown(tokenizer, [text], tokenizer.encode_batch([text]), unknown)
    assert ("Ж" in unknown.found) is not KINDS[kind].get("byte_fallback", False)


def test_sentencepiece_models_of_other_rules_are_refused(tmp_path: Path) -> None:
    for options in ({"treat_whitespace_as_suffix": True}, {"model_type": "word"}):
        with pytest.raises(DragomanError, match=r"own\.model: expected a SentencePiece model of "):
            read_trainable(trained(tmp_path, **options))
    (tmp_path / "no.model").write_bytes(b"no")
    with pytest.raises(DragomanError, match=r"no\.model: not a SentencePiece model"):
        read_trainable(tmp_path / "no.model")


def library_tokenizers() -> dict[str, Tokenizer]:
    """As checkpoints have them; with other special tokens and templates than Dragoman's own."""
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel()
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    byte_level.add_tokens(["dragoman"])
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    word_piece = Tokenizer(models.WordPiece(unk_token=special[0]))
    word_piece.normalizer = normalizers.BertNormalizer()
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    word_piece.decoder = decoders.WordPiece()
    word_piece.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special)
    )
    word_piece.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=120,
            special_tokens=["[X]", UNKNOWN],
            unk_token=UNKNOWN,
            show_progress=False,
        ),
    )
    unigram.add_special_tokens(["</s>"])
    return {"byte level": byte_level, "WordPiece": word_piece, "unigram": unigram}


@pytest.mark.parametrize("name", ["byte level", "WordPiece", "unigram"])
def test_files_of_the_tokenizers_library_give_their_own_tokens(tmp_path: Path, name: str) -> None:
    original = library_tokenizers()[name]
    original.enable_truncation(8)
    original.save(str(tmp_path / "Tokenizer.JSON"))
    original.no_truncation()
    original.encode_special_tokens = True
    tokenizer = read_trainable(tmp_path / "Tokenizer.JSON")
    special = {
        "byte level": ["<pad>", "<s>", "<|endoftext|>", "<unk>"],
        "WordPiece": ["[PAD]", "[CLS]", "[SEP]", "[UNK]"],
        "unigram": ["<pad>", "<s>", "</s>", "<unk>"],
    }[name]
    assert [tokenizer.id_to_token(n) for n in range(4)] == special
    assert tokenizer.get_vocab().keys() == original.get_vocab().keys() | {*special}
    assert sorted(tokenizer.get_vocab().values()) == [*range(tokenizer.get_vocab_size())]
    for text in (*CORPUS, "ЖЯ dragoman </s>", "", "  "):
        expected = original.encode(text, add_special_tokens=False)
        tokens = [original.id_to_token(n) for n in expected.ids]
        ids = tokenizer.encode(text).ids
        assert [tokenizer.id_to_token(n) for n in ids] == [*tokens, special[2]]
        assert tokenizer.decode(ids) == original.decode(expected.ids)


SETTINGS: dict[str, Any] = {
    "model": {"preset": "tiny", "d_model": 16, "d_ff": 24},
    "training": {"epochs": 1, "batch_tokens": 256, "warmup_steps": 10, "average_epochs": 1},
}


def described(directory: Path, vocabulary: dict[str, Any], **model: Any) -> Recipe:
    for name, first, end in (("train", 0, 20), ("dev", 20, 24)):
        lines = [f"{e.source}\t{e.references[0]}\n" for e in EXAMPLES[first:end]]
        text = "".join(lines) + ("Жus ЯЖ\tЯ\n" if name == "dev" else "")
        (directory / f"{name}.tsv").write_text(text, encoding="utf-8")
    path = directory / "own.json"
    model = SETTINGS["model"] | model
    path.write_text(json.dumps({**SETTINGS, "model": model, "vocabulary": vocabulary}))
    files = PairFiles([directory / "train.tsv"], [directory / "dev.tsv"])
    return read_training_file(path, files, directory / "work", read_vocabulary=read_trainable)


def test_characters_determine_the_size_of_the_model(tmp_path: Path) -> None:
    recipe = described(tmp_path, {"kind": "characters", "shared": False})
    data = recipe.load_data(None)
    run_recipe(recipe, data, tmp_path / "first", tmp_path / "work")
    config = load_checkpoint(tmp_path / "first").config
    sides = zip(*((e.source, e.references[0]) for e in data.train), strict=True)
    letters = [len({*"".join(side)} - {" "}) + len(SPECIAL_TOKENS) + 1 for side in sides]
    assert [config.source_vocab_size, config.target_vocab_size] == letters
    initial = read_initial_model(tmp_path / "first", recipe.config, open_vocabulary=True)
    assert initial.model.config == config
    with pytest.raises(DragomanError, match=r"source_vocab_size \d+ instead of 5"):
        read_initial_model(tmp_path / "first", recipe.config)
    run_recipe(recipe, data, tmp_path / "second", tmp_path / "work-2", initial=initial)


def test_unknown_characters_are_counted_by_part_and_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = described(tmp_path, {"size": 60})
    data = recipe.load_data(None)
    run_recipe(recipe, data, tmp_path / "model", tmp_path / "work")
    lines = [line for line in capsys.readouterr().err.splitlines() if "not in the voc" in line]
    sources = sum(len(example.source) for example in data.validation)
    targets = sum(len(example.references[0]) for example in data.validation)
    assert lines == [
        f"validation data, sources: 3 of {sources:,} characters ({300 / sources:.3g}%) are not in "
        "the vocabulary: 'Ж', 'Я'",
        f"validation data, targets: 1 of {targets:,} characters ({100 / targets:.3g}%) is not in "
        "the vocabulary: 'Я'",
    ]
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    found = record["unknown characters"]
    assert found["training"]["sources"]["unknown"] == 0
    assert found["validation"]["sources"] == {"unknown": 3, "characters": sources}
    assert found["held-out"] == found["validation"]


@pytest.mark.parametrize(
    "vocabulary",
    [{"size": 320, "byte_fallback": True}, {"kind": "characters"}, {"files": ["own.model"]}],
)
def test_prefixes_are_tokens_of_every_vocabulary(
    tmp_path: Path, vocabulary: dict[str, Any]
) -> None:
    trained(tmp_path, model_type="bpe")
    described(tmp_path, vocabulary)
    settings = json.loads((tmp_path / "own.json").read_text(encoding="utf-8"))
    corpora = {"corpora": [{"files": ["train.tsv"], "prefix": "<BT>"}], "dev": ["dev.tsv"]}
    (tmp_path / "own.json").write_text(json.dumps(settings | corpora), encoding="utf-8")
    recipe = read_training_file(
        tmp_path / "own.json", PairFiles(), tmp_path / "work", read_vocabulary=read_trainable
    )
    run_recipe(recipe, recipe.load_data(None), tmp_path / "model", tmp_path / "work")
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "source_tokenizer.json"))
    size = load_checkpoint(tmp_path / "model").config.source_vocab_size
    assert tokenizer.get_vocab_size() == size == vocabulary.get("size", size)
    ids = tokenizer.encode("<BT> the cat").ids
    assert ids == [tokenizer.token_to_id("<BT>"), *tokenizer.encode("the cat").ids]


@pytest.mark.parametrize("kind", [models.WordLevel, models.WordPiece])
def test_characters_do_not_count_in_vocabularies_of_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Any
) -> None:
    """As they do not when the bundle of the model runs."""
    words = Tokenizer(kind({"<unk>": 0, "the": 1, "cat": 2}, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    recipe = described(tmp_path, {"files": ["words.json"]})
    run_recipe(recipe, recipe.load_data(None), tmp_path / "model", tmp_path / "work")
    assert "not in the vocabulary" not in capsys.readouterr().err
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    assert "unknown characters" not in record
    file = tmp_path / "model" / "source_tokenizer.json"
    assert TextCodec(file, file).encode_source("a dog").unknown == ""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (".", "expected a regular file, found a directory"),
        ("nope.json", "expected a file, found none"),
        ("dev.tsv", "not a SentencePiece model"),
        ("list.json", "not a tokenizer file: .*"),
    ],
)
def test_errors_of_a_vocabulary_say_where_it_is_stated(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DragomanError) as raised:
        described(tmp_path, {"files": [name]})
    where = f"{tmp_path / 'own.json'}: vocabulary: files: {tmp_path / name}: "
    assert re.fullmatch(re.escape(where) + problem, str(raised.value))


def test_a_model_is_trained_with_vocabularies_of_ones_own(tmp_path: Path) -> None:
    """Of unequal sizes, for source and target."""
    (tmp_path / "more").mkdir()
    names = ["own.model", "more/own.model"]
    trained(tmp_path, model_type="bpe")
    trained(tmp_path / "more", model_type="unigram", vocab_size=100)
    recipe = described(tmp_path, {"files": names})
    run_recipe(recipe, recipe.load_data(None), tmp_path / "model", tmp_path / "work")
    model = load_checkpoint(tmp_path / "model")
    assert [model.config.source_vocab_size, model.config.target_vocab_size] == [151, 101]
    assert not model.config.tie_source_target
    files = [tmp_path / "model" / f"{side}_tokenizer.json" for side in ("source", "target")]
    for file, name in zip(files, names, strict=True):
        library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / name))
        found = Tokenizer.from_file(str(file)).encode(CORPUS[0]).tokens
        assert found == [*library.encode(CORPUS[0], out_type=str), "</s>"]
    with pytest.raises(DragomanError, match=r"model: tie_source_target: expected false"):
        described(tmp_path, {"files": names}, tie_source_target=True)
    with pytest.raises(DragomanError, match=r"none\.model"):
        described(tmp_path, {"files": ["none.model"]})
    with pytest.raises(DragomanError, match=r"files: expected read_vocabulary, a function"):
        read_training_file(tmp_path / "own.json", PairFiles([tmp_path], [tmp_path]))
    lower = described(tmp_path, {"files": names[:1], "lowercase": True})
    tokenizer = lower.make_tokenizers(lower.load_data(None)).source
    assert tokenizer.encode("THE CAT").ids == tokenizer.encode("the cat").ids


@pytest.mark.parametrize(("model_type", "size"), [("bpe", 100), ("unigram", 150)])
def test_a_training_keeps_the_vocabulary_of_its_files(
    tmp_path: Path, model_type: str, size: int
) -> None:
    trained(tmp_path, model_type=model_type)
    work, checkpoint = tmp_path / "work", tmp_path / "model"

    def run(name: str, **more: Any) -> list[bytes]:
        recipe = described(tmp_path, {"files": [name]})
        run_recipe(recipe, recipe.load_data(None), checkpoint, **{"work": work} | more)
        files = [checkpoint / f"{side}_tokenizer.json" for side in ("source", "target")]
        return [file.read_bytes() for file in files]

    first = run("own.model")
    (tmp_path / "copy.model").write_bytes((tmp_path / "own.model").read_bytes())
    assert run("copy.model") == first, "the contents count, not the name"
    initial = read_initial_model(checkpoint, described(tmp_path, {"files": ["own.model"]}).config)
    trained(tmp_path, model_type=model_type, vocab_size=size, user_defined_symbols=["<sep>"])
    before = {path: path.read_bytes() for path in work.iterdir()}
    refused = "work: expected the vocabulary that this training began with, found another one in"
    for finish in (False, True):
        with pytest.raises(DragomanError, match=f"{refused} vocabulary.files; go"):
            run("own.model", finish=finish)
    assert {path: path.read_bytes() for path in work.iterdir()} == before
    with pytest.raises(DragomanError, match="files: expected the tokenizers of the model to start"):
        run("own.model", work=tmp_path / "tuning", initial=initial)
    assert not (tmp_path / "tuning").exists()
    run("model/source_tokenizer.json", work=tmp_path / "tuning", initial=initial)
    (work / "state.pt").unlink()
    with pytest.raises(DragomanError, match=f"{refused} vocabulary.files; go"):
        run("own.model", finish=True)
    assert run("own.model") != first
    tokenizer = Tokenizer.from_file(str(checkpoint / "source_tokenizer.json"))
    library = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "own.model"))
    assert tokenizer.encode(CORPUS[0]).tokens == [*library.encode(CORPUS[0], out_type=str), "</s>"]
    (work / "source_tokenizer.json").unlink()
    with pytest.raises(DragomanError, match=r"source_tokenizer.json: expected a tokenizer to go"):
        run("own.model")
