"""Reading and cleaning parallel text, and training vocabularies on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import DragomanError
from dragoman.reference_model.recipes import Example
from dragoman.reference_model.recipes.examples import Cleaning, clean, describe, read_pairs
from dragoman.reference_model.recipes.tokenizers import Vocabulary, train_tokenizers


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_bytes(text.encode())
    return path


def test_one_file_and_two_files_are_the_same_pairs(tmp_path: Path) -> None:
    together = write(tmp_path, "both.tsv", "a cat\teine Katze\r\n\tnothing\nlast\tletzte")
    sources = write(tmp_path, "a.en", "a cat\r\n\nlast\n")
    targets = write(tmp_path, "a.de", "eine Katze\nnothing\nletzte")
    pairs = [("a cat", "eine Katze"), ("", "nothing"), ("last", "letzte")]
    assert list(read_pairs([together])) == list(read_pairs([sources, targets])) == pairs


def test_what_is_not_pairs_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path, "one.tsv", "a\tb\nalone\n")
    three = write(tmp_path, "three.tsv", "a\tb\tc\n")
    lines = write(tmp_path, "lines", "a\nb\nc\n")
    latin = tmp_path / "latin"
    latin.write_bytes("a\té\n".encode("latin-1"))
    for files, message in (
        ([one], "one.tsv, line 2: expected a source, a tab and a target, found 0 tabs"),
        ([three], "three.tsv, line 1: .* found 2 tabs"),
        ([one, lines], "as many targets as sources, found 2 lines in .*one.tsv and 3 in .*lines"),
        ([latin], "latin: expected UTF-8"),
        ([tmp_path / "missing"], "found nothing at .*missing"),
        ([one, one, one], "expected one file of pairs .* found 3 files"),
    ):
        with pytest.raises(DragomanError, match=message):
            list(read_pairs(files))


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert list(read_pairs([write(tmp_path, "bom.tsv", "\ufeffa\tb\n")])) == [("a", "b")]


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n  \n\r\n", ""])
def test_blank_lines_at_the_end_are_no_pairs(tmp_path: Path, end: str) -> None:
    together = write(tmp_path, "both.tsv", f"a\tb\nc\td{end}")
    assert list(read_pairs([together])) == [("a", "b"), ("c", "d")]
    sources, targets = write(tmp_path, "a.en", f"a\nc{end}"), write(tmp_path, "a.de", "b\nd\n")
    assert list(read_pairs([sources, targets])) == [("a", "b"), ("c", "d")]
    # A line without a target is a pair as long as it has a source.
    write(tmp_path, "a.de", f"b\n\n{end}")
    assert list(read_pairs([sources, targets])) == [("a", "b"), ("c", "")]
    with pytest.raises(DragomanError, match=r"both.tsv, line 2: .* found 0 tabs"):
        list(read_pairs([write(tmp_path, "both.tsv", "a\tb\n\nc\td\n")]))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"ab\xe9\tc\n", "byte 0xe9 at offset 2 (line 1)"),
        (b"\xef\xbb\xbfa\xff\tb\n", "byte 0xff at offset 4 (line 1)"),
        ("ä\tö\r\nü\t".encode() + b"\xc3\nx\ty\n", "byte 0xc3 at offset 10 (line 2)"),
        (b"x\ty\n" * 40_000 + b"x\ty\x80", "byte 0x80 at offset 160003 (line 40001)"),
        ("a\tb\n".encode("utf-16"), "byte 0xff at offset 0 (line 1)"),
    ],
)
def test_an_error_of_encoding_names_the_byte(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    for files in ([path], [path, path]):
        with pytest.raises(DragomanError) as error:
            list(read_pairs(files))
        assert str(error.value) == f"{path}: expected UTF-8 text, found {found}"


def test_cleaning_counts_what_it_leaves_out() -> None:
    long = "word " * 30
    pairs = [
        (" two  words ", "zwei Wörter"),
        ("", "leer"),
        ("  ", "leer"),
        ("two words", "zwei Wörter"),
        ("two words", "zwei Worte"),
        ("no", "auf gar keinen Fall"),  # 2 to 19 characters: too short for lengths to say much
        ("oh", "auf überhaupt gar keinen Fall"),
        (long, long),
    ]
    kept, dropped = clean(pairs, Cleaning(longest=100, ratio=3))
    assert kept == [
        Example("two words", ("zwei Wörter",)),
        Example("two words", ("zwei Worte",)),
        Example("no", ("auf gar keinen Fall",)),
    ]
    assert dropped == {"an empty side": 2, "a duplicate": 1, "unequal lengths": 1, "too long": 1}
    assert sum(dropped.values()) + len(kept) == len(pairs)
    said = describe(len(kept), {"an empty side": 2, "a duplicate": 0})
    assert said == "3 of 5 pairs kept (2 an empty side)"


def test_rules_can_be_switched_off() -> None:
    pairs = [("a", "b" * 2000), ("a", "b" * 2000)]
    kept, dropped = clean(pairs, Cleaning(duplicates=True, longest=None, ratio=None))
    assert len(kept) == 2 and not dropped
    with pytest.raises(DragomanError, match=r"found none: 0 of 2 pairs kept \(2 unequal lengths\)"):
        clean(pairs, Cleaning(longest=None))


@pytest.mark.parametrize("rules", [{"longest": 0}, {"ratio": 0.5}, {"duplicates": "no"}])
def test_rules_out_of_range_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(DragomanError, match=next(iter(rules))):
        Cleaning(**rules)  # type: ignore[arg-type]


EXAMPLES = [
    Example(f"the {animal} eats {food}, again.", (f"{animal} frisst {food}!", f"der {animal}"))
    for animal in ("cat", "dog", "otter", "badger", "mouse", "finch")
    for food in ("bread", "cheese", "nuts", "seeds", "fish")
]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("shared", [True, False])
def test_vocabularies_have_the_size_asked_for(kind: str, *, shared: bool) -> None:
    size = 50 if kind == "bpe" else 30
    vocabulary = Vocabulary(size=size, kind=kind, shared=shared)  # type: ignore[arg-type]
    source, target = train_tokenizers(vocabulary, EXAMPLES)
    assert source.get_vocab_size() == target.get_vocab_size() == size
    assert (source.to_str() == target.to_str()) is shared
    for tokenizer in (source, target):
        assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    for tokenizer, text in ((source, "the otter eats nuts, again."), (target, "der dog")):
        ids = tokenizer.encode(text).ids
        assert ids[-1] == 2 and 3 not in ids
        assert tokenizer.decode(ids) == text
    assert source.encode("</s>").ids.count(2) == 1, "a user's end token is text"
    assert source.encode("Ω").ids == [*source.encode("Ω").ids[:-1], 2]
    assert 3 in source.encode("Ω").ids


def test_punctuation_is_apart_unless_the_text_has_spaces_around_it() -> None:
    apart, _ = train_tokenizers(Vocabulary(size=60), EXAMPLES)
    assert not any("." in token and len(token) > 1 for token in apart.get_vocab())
    as_written, _ = train_tokenizers(Vocabulary(size=60, tokenized=True), EXAMPLES)
    assert any("." in token[1:] for token in as_written.get_vocab())


def test_lower_case() -> None:
    source, _ = train_tokenizers(Vocabulary(size=50, lowercase=True), EXAMPLES)
    assert source.encode("The CAT").ids == source.encode("the cat").ids


def test_a_vocabulary_that_the_texts_do_not_give_is_refused() -> None:
    for kind in ("bpe", "unigram"):
        with pytest.raises(
            DragomanError, match=r"vocabulary: expected 5000 tokens, but both sides give only \d+"
        ):
            train_tokenizers(Vocabulary(size=5000, kind=kind), EXAMPLES)
    with pytest.raises(DragomanError, match=r"expected 10 tokens, but the symbols .* larger size"):
        train_tokenizers(Vocabulary(size=10), EXAMPLES)
    with pytest.raises(DragomanError, match="10 tokens cannot be made of both sides"):
        train_tokenizers(Vocabulary(size=10, kind="unigram"), EXAMPLES)
    with pytest.raises(DragomanError, match="size: expected more than 4, found 4"):
        Vocabulary(size=4)
