"""Files of shortlists: hand-worked lexicons, `vmap.txt` and Marian's binary form."""

from __future__ import annotations

import dataclasses
import gzip
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from dragoman import DragomanError
from dragoman.export import export_bundle
from dragoman.export.shortlists import (
    BEST,
    ITERATIONS,
    MAGIC,
    _ibm_model_1,
    check_shortlist_model,
    learned_shortlist,
    shortlist_of,
)
from dragoman.export.tokenizers import TokenizerFiles
from dragoman.runtime.format.bundle import Bundle

from ..zoo import letters_model, letters_tokenizers

END = 2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model in the vocabularies of g2p-en: letters, and phonemes such as AA."""
    directory = tmp_path_factory.mktemp("bundle")
    tokenizers = letters_tokenizers(tmp_path_factory.mktemp("tokenizers"))
    return export_bundle(letters_model(), directory, name="letters", tokenizers=tokenizers)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same model without tokenizers, whose tokens are spelled as ids."""
    return export_bundle(letters_model(), tmp_path_factory.mktemp("numbered"), name="numbered")


def ids(bundle: Bundle, *pieces: str) -> list[int]:
    from dragoman.runtime.texts.tokenizer import TextCodec

    assert bundle.manifest.tokenizers is not None
    codec = TextCodec.of(bundle.manifest.tokenizers, bundle.directory, None)
    found = [codec.target_token(piece) for piece in pieces]
    assert None not in found
    return sorted(token for token in found if token is not None)


def source_id(bundle: Bundle, letter: str) -> int:
    from dragoman.runtime.texts.tokenizer import TextCodec

    assert bundle.manifest.tokenizers is not None
    codec = TextCodec.of(bundle.manifest.tokenizers, bundle.directory, None)
    size = bundle.manifest.model.source_vocab_size or 0
    return next(i for i in range(size) if codec.source_piece(i) == letter)


def written(tmp_path: Path, text: str, name: str = "lex.txt") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


LEXICON = "a AA 0.5\na AE 0.4\nb B 1.0\nc K 0.7\nc S 0.3\nzz B 0.5\n"


def test_a_lexicon_lists_the_targets_of_each_source(bundle: Bundle, tmp_path: Path) -> None:
    found = shortlist_of(written(tmp_path, LEXICON), bundle)
    a, b, c = (source_id(bundle, letter) for letter in "abc")
    assert found.entries.keys() == {(a,), (b,), (c,)}
    assert found.entries[(a,)].tolist() == ids(bundle, "AA", "AE")
    assert found.entries[(c,)].tolist() == ids(bundle, "K", "S")
    assert END in found.always


def test_a_lexicon_that_begins_with_targets(bundle: Bundle, tmp_path: Path) -> None:
    """B follows from two sources with probability 1: the first column sums to 2."""
    pairs = ["a B 1.0", "b B 1.0", "c K 0.6", "c S 0.4"]
    turned = ["{1} {0} {2}".format(*line.split()) for line in pairs]
    expected = shortlist_of(written(tmp_path, "\n".join(pairs)), bundle)
    found = shortlist_of(written(tmp_path, "\n".join(turned)), bundle)
    assert found.entries.keys() == expected.entries.keys()
    for source, tokens in expected.entries.items():
        assert found.entries[source].tolist() == tokens.tolist()


def test_logarithms_and_compressed_files(bundle: Bundle, tmp_path: Path) -> None:
    """fast_align prints logarithms. The order of probabilities decides which ones are kept."""
    lines = [line.split() for line in LEXICON.splitlines()]
    logs = "\n".join(f"{s} {t} {math.log(float(p)):.4f}" for s, t, p in lines)
    path = tmp_path / "lex.gz"
    path.write_bytes(gzip.compress(logs.encode()))
    expected = shortlist_of(written(tmp_path, LEXICON), bundle)
    found = shortlist_of(path, bundle)
    assert {k: v.tolist() for k, v in found.entries.items()} == {
        k: v.tolist() for k, v in expected.entries.items()
    }


def test_only_the_best_targets_are_kept(numbered: Bundle, tmp_path: Path) -> None:
    """Ids are sources and targets; more targets than are kept do not fit this vocabulary."""
    lines = [f"3 {t} {1 / 42:.6f}" for t in range(42)]
    found = shortlist_of(written(tmp_path, "\n".join(lines)), numbered)
    assert found.entries[(3,)].tolist() == list(range(min(BEST, 42)))


def test_a_vmap_has_entries_of_several_tokens(bundle: Bundle, tmp_path: Path) -> None:
    path = written(tmp_path, "\tK S\na\tAA\na b\tB AE\n", "vmap.txt")
    found = shortlist_of(path, bundle)
    a, b = source_id(bundle, "a"), source_id(bundle, "b")
    assert found.entries[(a, b)].tolist() == ids(bundle, "B", "AE")
    assert set(ids(bundle, "K", "S")) | {END} == set(found.always.tolist())
    assert set(found.allowed([a, b]).tolist()) == {*ids(bundle, "K", "S", "AA", "B", "AE"), END}


def test_ids_in_a_vmap_and_white_space_in_tokens(
    numbered: Bundle, bundle: Bundle, tmp_path: Path
) -> None:
    """Three numbers in a line are no lexicon if a tab follows the sources."""
    found = shortlist_of(written(tmp_path, "5\t10 11\n6\t13 14\n5 6\t40\n", "vmap.txt"), numbered)
    assert {k: v.tolist() for k, v in found.entries.items()} == {
        (5,): [10, 11],
        (6,): [13, 14],
        (5, 6): [40],
    }
    text = "\ufeffa AA 0.5\r\nb B 1.0\r\nb\u00a0 B 1.0\r\n"
    found = shortlist_of(written(tmp_path, text), bundle)
    assert found.entries.keys() == {(source_id(bundle, letter),) for letter in "ab"}


def binary(offsets: list[int], words: list[int], first: int = 4) -> bytes:
    sizes = first, 100, len(offsets), len(words)
    body = struct.pack(f"<{4 + len(offsets)}Q", *sizes, *offsets)
    body += struct.pack(f"<{len(words)}I", *words)
    hashed = 0
    for place in range(0, len(body) - 7, 8):
        (word,) = struct.unpack_from("<Q", body, place)
        hashed ^= (word + 0x9E3779B9 + hashed * 64 + hashed // 4) % 2**64
    return struct.pack("<2Q", MAGIC, hashed) + body


def test_a_binary_file_of_marian(numbered: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "lex.s2t.bin"
    data = binary([0, 2, 2, 5], [7, 9, 30, 8, 31])
    # What `hashMem` of Marian's src/common/hash.h makes of this file, compiled.
    assert struct.unpack_from("<Q", data, 8) == (0x8563B50CD7242000,)
    path.write_bytes(data)
    found = shortlist_of(path, numbered)
    assert {k: v.tolist() for k, v in found.entries.items()} == {(0,): [7, 9], (2,): [8, 30, 31]}
    assert found.always.tolist() == [0, 1, 2, 3]


def test_a_compressed_binary_file(numbered: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "lex.s2t.bin.gz"
    path.write_bytes(gzip.compress(binary([0, 1], [7])))
    assert shortlist_of(path, numbered).entries[(0,)].tolist() == [7]


def test_with_one_vocabulary_sources_allow_their_own_tokens(tmp_path: Path) -> None:
    """As in Marian, so that names can be copied; `vmap.txt` states all that is allowed."""
    letters_tokenizers(tmp_path)
    letters = tmp_path / "source_tokenizer.json"
    model = letters_model(source_vocab_size=29, target_vocab_size=29)
    (tmp_path / "bundle").mkdir()
    tokenizers = TokenizerFiles(letters, letters)
    shared = export_bundle(model, tmp_path / "bundle", name="shared", tokenizers=tokenizers)
    a, b, c = (source_id(shared, letter) for letter in "abc")
    files = {
        "lex.txt": b"a b 0.5\na c 0.5\n",
        "lex.bin": binary([0] * (a + 1) + [2], sorted([b, c])),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        found = shortlist_of(path, shared)
        assert found.entries[(a,)].tolist() == sorted([a, b, c])
        assert found.entries[(c,)].tolist() == [c]
    learned = learned_shortlist(written(tmp_path, "ab\tbc\n", "pairs.tsv"), shared)
    assert {a, b, c} <= {*learned.allowed([a, b, c]).tolist()}
    stated = shortlist_of(written(tmp_path, "a\tb\n", "vmap.txt"), shared)
    assert stated.entries.keys() == {(a,)}
    assert stated.entries[(a,)].tolist() == [b]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected the lines of a shortlist, found none"),
        (b"\xff\xfe\x00", "expected a shortlist: lines of source token"),
        (b"\x1f\x8b garbage", "expected a shortlist: lines of source token"),
        (b"a AA\n", "line 1: expected source token, target token and probability"),
        (b"a AA 0.5\nb B often\n", "line 2: expected source token, target token and prob"),
        (b"a AA nan\n", "line 1: expected source token, target token and probability"),
        (b"q1 w2 0.5\ne3 r4 0.5\na AA 1\n", "found others in 2 of 3 lines, the first one 'q1'"),
        (b"a b c d e f g h i\tB\n", "line 1: expected at most 8 source tokens, found 9"),
        (b"a AA -0.5\nb B 0.5\n", "expected probabilities or their logarithms, found -0.5 and 0.5"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03garbage", "expected a shortlist: lines of sou"),
        (b"a\tB AA\na\t\n", "line 2: expected source tokens, a tab and target tokens"),
        (binary([0, 1], [7])[:-2], "it is cut"),
        (binary([0, 1], [7])[:20], "expected a shortlist of Marian, found 20 bytes"),
        (binary([0, 2], [7, 9]).replace(b"\x09", b"\x08"), r"checksum 0x\w+ .* damaged"),
        (binary([0, 1], [42]), "one with 1 source tokens, the target token 42"),
        (binary([0] * 31, [7]), "one with 30 source tokens"),
        (binary([0, 1], [7], first=43), "expected a shortlist for vocabularies of 29 and 42"),
        (binary([2, 1], [7, 8]), "expected ascending offsets"),
        (binary([0, 3], [7, 8]), "expected ascending offsets"),
    ],
)
def test_bad_files_are_refused(data: bytes, message: str, bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "shortlist"
    path.write_bytes(data)
    with pytest.raises(DragomanError, match=message):
        shortlist_of(path, bundle)


def test_only_translation_models_have_shortlists(numbered: Bundle) -> None:
    model = dataclasses.replace(
        numbered.manifest.model, source_vocab_size=0, max_source_positions=0
    )
    with pytest.raises(DragomanError, match="expected an encoder-decoder model of texts"):
        check_shortlist_model(model)
    with pytest.raises(DragomanError, match="found a speech model"):
        check_shortlist_model(dataclasses.replace(model, source_vocab_size=None))


PAIRS = "ab\tB AE\nac\tK AE\nbc\tB K\nabc\tB K AE\ncc\tK\nb\tB\n"
"""Each letter of a text stands for one phoneme, in another order."""


def test_a_shortlist_is_learned_from_pairs(bundle: Bundle, tmp_path: Path) -> None:
    path = written(tmp_path, PAIRS + "a" * 300 + "\tAE\n\tS\n", "pairs.tsv")
    found = learned_shortlist(path, bundle)
    for letter, phoneme in zip("abc", ("AE", "B", "K"), strict=True):
        tokens = found.entries[(source_id(bundle, letter),)].tolist()
        assert ids(bundle, phoneme)[0] in tokens
    assert END in found.always


def test_model_1_gives_the_probabilities_of_its_equations() -> None:
    """Brown et al. 1993, equations 17 and 18 without the empty word: one iteration by hand."""
    pairs = [(np.array([0, 1]), np.array([0, 1])), (np.array([1]), np.array([1]))]
    translation = {(s, t): 1.0 for s in (0, 1) for t in (0, 1)}
    for _ in range(ITERATIONS):
        counts: dict[tuple[int, int], float] = {}
        for sources, targets in pairs:
            for t in targets.tolist():
                total = sum(translation[s, t] for s in sources.tolist())
                for s in sources.tolist():
                    counts[s, t] = counts.get((s, t), 0) + translation[s, t] / total
        sums = {s: sum(c for (own, _), c in counts.items() if own == s) for s in (0, 1)}
        translation = {(s, t): c / sums[s] for (s, t), c in counts.items()}
    found = _ibm_model_1(pairs, 2)
    for source, listed in found.items():
        for probability, target in listed:
            assert probability == pytest.approx(translation[source, target])
    assert {(s, t) for s, listed in found.items() for _, t in listed} == {
        pair for pair, probability in translation.items() if probability > 1e-4
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected pairs of texts that the model reads, found none"),
        ("abc\n", "line 1: expected a source, a tab and a target, found 0 tabs"),
        ("\tB\n", "expected pairs of texts that the model reads, found none"),
    ],
)
def test_pairs_that_teach_nothing_are_refused(
    text: str, message: str, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(DragomanError, match=message):
        learned_shortlist(written(tmp_path, text, "pairs.tsv"), bundle)


def test_ids_cannot_be_learned_from(numbered: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DragomanError, match="expected a model with tokenizers to learn from"):
        learned_shortlist(written(tmp_path, PAIRS, "pairs.tsv"), numbered)
