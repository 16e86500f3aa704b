"""The tokenizers of a bundle are held to its checkpoint's: what changes an output is found and
named, and what does not passes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman.export.checkpoints import OpenedCheckpoint, open_checkpoint
from dragoman.export.locating import LocatedCheckpoint, locate_checkpoint
from dragoman.export.neutral_bundle import manifest_of
from dragoman.export.tokenizers import PieceModel, TokenizerFiles
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.runtime import Bundle
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.texts import Languages, SourceTemplate
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.verification.stored.tokenizers import compare_tokenizers

ROOT = Path(__file__).parents[2]
CORPUS = [
    *(line for line in (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines() if line),
    *(f"{year}: {12 * year} of {100 * year:,} words" for year in range(1990, 2030)),
]
PIECES = 400
CONFIG = ModelConfig(
    source_vocab_size=PIECES + 10,
    target_vocab_size=PIECES + 10,
    encoder_layers=1,
    decoder_layers=1,
    d_model=8,
    num_heads=1,
    d_ff=8,
)
Data = dict[str, Any]
Change = Callable[[Data], None]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(CONFIG)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A byte-level pair encoding that puts an end token after a text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<mask>"]
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=PIECES,
            special_tokens=[AddedToken(token, normalized=False) for token in special],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 2)]
    )
    return made


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """A tokenizer of letters, which refuses all others."""
    alphabet = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    made = Tokenizer(models.WordLevel(alphabet | {"</s>": 26}, unk_token=None))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.add_special_tokens(["</s>"])
    return made


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model."""
    directory = tmp_path_factory.mktemp("unigram")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "unigram"),
        vocab_size=PIECES - 150,
        minloglevel=2,
    )
    return directory / "unigram.model"


@dataclasses.dataclass
class Made:
    """A checkpoint, and the bundle of its tokenizers, which has no graphs."""

    checkpoint: OpenedCheckpoint
    bundle: Bundle

    @property
    def check(self) -> Check:
        check = compare_tokenizers(self.bundle, self.checkpoint)
        assert check is not None
        return check

    def change(self, name: str, change: Change) -> Check:
        """Change a file of the bundle, and compare."""
        path = self.bundle.path(name)
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")
        return self.check

    def replace(self, **fields: Any) -> Check:
        """Change the manifest, and compare."""
        manifest = dataclasses.replace(self.bundle.manifest, **fields)
        self.bundle = dataclasses.replace(self.bundle, manifest=manifest)
        return self.check


@pytest.fixture
def make(model: Transformer, tmp_path: Path) -> Callable[[TokenizerFiles | None], Made]:
    def make(files: TokenizerFiles | None) -> Made:
        manifest = manifest_of(
            model,
            name="test",
            graphs={},
            tokenizers=files.write(ScratchWriter(tmp_path)) if files else None,
            languages=files.languages if files else None,
        )
        opened = OpenedCheckpoint(model, files, located=LocatedCheckpoint(tmp_path, {}))
        return Made(opened, Bundle(tmp_path, manifest))

    return make


Make = Callable[[TokenizerFiles | None], Made]


@pytest.fixture
def shared(make: Make, byte_level: Tokenizer) -> Made:
    """One tokenizer for both sides."""
    return make(TokenizerFiles(byte_level, byte_level))


@pytest.fixture
def separate(make: Make, byte_level: Tokenizer, letters: Tokenizer) -> Made:
    return make(TokenizerFiles(letters, byte_level))


@pytest.fixture
def pieces(make: Make, unigram: Path) -> Made:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(unigram))
    ids = {processor.id_to_piece(number): number for number in range(3, len(processor))}
    tokenizer = PieceModel(unigram, ids, 0)
    return make(TokenizerFiles(tokenizer, tokenizer, SourceTemplate((), (2,))))


def passes(check: Check) -> bool:
    assert check.name == "tokenizers" and check.unit == "token ids"
    assert check.passed == (check.problem == "") == (check.differing == 0)
    return check.passed


def test_a_bundle_without_tokenizers_is_not_compared(make: Make) -> None:
    made = make(None)
    assert compare_tokenizers(made.bundle, made.checkpoint) is None


@pytest.mark.parametrize("name", ["g2p-en", "bible-en-es", "verses-en"])
def test_those_of_shipped_checkpoints_pass(name: str, tmp_path: Path) -> None:
    opened = open_checkpoint(locate_checkpoint(name))
    assert opened.tokenizers is not None
    written = opened.tokenizers.write(ScratchWriter(tmp_path))
    manifest = manifest_of(opened.model, name=name, graphs={}, tokenizers=written)
    check = Made(opened, Bundle(tmp_path, manifest)).check
    assert passes(check) and check.compared > 50


def test_the_same_passes(shared: Made) -> None:
    assert passes(shared.check) and shared.check.compared == PIECES


def test_both_sides_are_counted(separate: Made) -> None:
    assert passes(separate.check) and separate.check.compared == PIECES + 27


def test_the_same_pieces_pass(pieces: Made) -> None:
    assert passes(pieces.check) and pieces.check.compared == PIECES - 153


def reordered(data: Data) -> None:
    items = list(reversed(data.items()))
    data.clear()
    data.update(items)


def older(data: Data) -> None:
    """The file as an older version of the library writes it."""
    for field in ("byte_fallback", "ignore_merges", "fuse_unk", "dropout"):
        del data["model"][field]
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]


def without_effect(data: Data) -> None:
    data["normalizer"] = {"type": "Sequence", "normalizers": []}
    data["model"]["continuing_subword_prefix"] = ""


def truncating(data: Data) -> None:
    """What bundles do not heed."""
    data["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "stride": 0,
        "strategy": "LongestFirst",
    }


@pytest.mark.parametrize("change", [reordered, older, without_effect, truncating])
def test_a_harmless_difference_passes(change: Change, shared: Made) -> None:
    assert passes(shared.change("tokenizer.json", change))


def test_white_space_in_a_file_passes(shared: Made) -> None:
    path = shared.bundle.path("tokenizer.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3), encoding="utf-8")
    assert passes(shared.check)


def swapped(data: Data) -> None:
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def without_a_merge(data: Data) -> None:
    data["model"]["merges"].pop(20)


def merges_reordered(data: Data) -> None:
    merges = data["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]


def lowercase(data: Data) -> None:
    data["normalizer"] = {"type": "Lowercase"}


def one_character(data: Data) -> None:
    data["normalizer"] = {
        "type": "Replace",
        "pattern": {"String": "\u0e3f"},
        "content": "THB",
    }


def composed(data: Data) -> None:
    data["normalizer"] = {"type": "NFC"}


def stripped(data: Data) -> None:
    data["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}


def prefix_space(data: Data) -> None:
    data["pre_tokenizer"]["add_prefix_space"] = True


def digits(data: Data) -> None:
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, data["pre_tokenizer"]],
    }


def no_end(data: Data) -> None:
    data["post_processor"] = None


def other_end(data: Data) -> None:
    data["post_processor"]["special_tokens"]["</s>"]["ids"] = [0]


def one_segment(data: Data) -> None:
    for item in data["post_processor"]["pair"]:
        next(iter(item.values()))["type_id"] = 0


def no_decoder(data: Data) -> None:
    data["decoder"] = None


def stripping_decoder(data: Data) -> None:
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    data["decoder"] = {"type": "Sequence", "decoders": [data["decoder"], strip]}


def shown_special(data: Data) -> None:
    data["added_tokens"][2]["special"] = False


def strips_left(data: Data) -> None:
    data["added_tokens"][3]["lstrip"] = True


def another_special(data: Data) -> None:
    data["added_tokens"].append({**data["added_tokens"][3], "id": PIECES, "content": "<x>"})


CHANGES: list[tuple[Change, str]] = [
    (swapped, "tokenizer: expected 'a' -> "),
    (without_a_merge, "tokenizer: expected ['"),
    (merges_reordered, "tokenizer: expected ['"),
    (lowercase, "tokenizer: expected 'A' -> ["),
    (one_character, "tokenizer: expected 'a\u0e3fb' -> ["),
    (composed, "tokenizer: expected '"),
    (stripped, "tokenizer: expected ' ' -> ["),
    (prefix_space, "tokenizer: expected "),
    (digits, "tokenizer: expected '"),
    (no_end, "tokenizer: expected '' -> [2], found []"),
    (other_end, "tokenizer: expected '' -> [2], found [0]"),
    (one_segment, "tokenizer: expected segment, span and whether it is special of token "),
    (no_decoder, "tokenizer: expected ["),
    (stripping_decoder, "tokenizer: expected ["),
    (shown_special, "tokenizer: expected "),
    (strips_left, "tokenizer: expected 'a <mask> b' -> ["),
    (another_special, "tokenizer: expected '<x>' -> none, found 400"),
]


@pytest.mark.parametrize(("change", "problem"), CHANGES, ids=[c[0].__name__ for c in CHANGES])
def test_a_difference_is_named(change: Change, problem: str, shared: Made) -> None:
    check = shared.change("tokenizer.json", change)
    assert not passes(check) and 0 < check.differing <= check.compared
    assert check.problem.startswith(problem) and ", found " in check.problem


@pytest.mark.parametrize("change", [shown_special, no_decoder, swapped, without_a_merge])
def test_the_side_is_named(change: Change, separate: Made) -> None:
    check = separate.change("target_tokenizer.json", change)
    assert check.problem.startswith("target tokenizer: expected ")


def test_a_missing_merge_is_named(shared: Made) -> None:
    path = shared.bundle.path("tokenizer.json")
    merges = json.loads(path.read_text(encoding="utf-8"))["model"]["merges"]
    check = shared.change("tokenizer.json", without_a_merge)
    assert check.problem == (
        f"tokenizer: expected {merges[20]} at place 20 of its merges, found {merges[21]}"
    )
    assert check.differing == 1
    check = shared.change("tokenizer.json", lambda data: data["model"].update(merges=merges[:-1]))
    assert check.problem.endswith(f"at place {len(merges) - 1} of its merges, found none")


def test_the_ids_are_named_and_counted(separate: Made) -> None:
    check = separate.change("source_tokenizer.json", swapped)
    assert check.problem == "source tokenizer: expected 'a' -> 0, found 1"
    assert check.differing == 2


def test_a_tokenizer_that_refuses_texts_is_compared(separate: Made) -> None:
    check = separate.change("source_tokenizer.json", lowercase)
    assert check.problem.startswith("source tokenizer: expected 'A' -> [], found [0]")


def test_both_sides_are_compared(separate: Made) -> None:
    separate.change("source_tokenizer.json", swapped)
    check = separate.change("target_tokenizer.json", swapped)
    assert check.problem.startswith("source tokenizer") and check.differing == 4


def test_swapped_sides_are_named(separate: Made) -> None:
    record = separate.bundle.manifest.tokenizers
    assert record is not None and record.source is not None
    swapped = dataclasses.replace(record, source=record.target, target=record.source)
    check = separate.replace(tokenizers=swapped)
    assert check.problem.startswith("source tokenizer: expected ")


def test_a_score_is_named(make: Make) -> None:
    scored = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0))
    check = make(TokenizerFiles(scored, scored)).change(
        "tokenizer.json", lambda data: data["model"]["vocab"][2].__setitem__(1, -1.5)
    )
    assert check.problem == (
        "tokenizer: expected ['b', -2.0] at place 2 of its scores, found ['b', -1.5]"
    )
    assert check.differing == 1


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": {"type": "BPE"}}'])
def test_a_damaged_file_is_named(content: str, shared: Made) -> None:
    shared.bundle.path("tokenizer.json").write_text(content)
    assert shared.check.problem.startswith("tokenizer: not a tokenizer file")


def test_missing_tokenizers_are_named(make: Make, shared: Made) -> None:
    """A checkpoint without tokenizers does not say what those of a bundle should be."""
    without = dataclasses.replace(shared.checkpoint, tokenizers=None)
    assert compare_tokenizers(shared.bundle, without) is None
    assert shared.replace(tokenizers=None).problem == (
        "tokenizers: expected those of the checkpoint, found none"
    )


def test_a_missing_source_is_named(separate: Made) -> None:
    record = separate.bundle.manifest.tokenizers
    assert record is not None
    check = separate.replace(tokenizers=dataclasses.replace(record, source=None))
    assert check.problem == (
        "source tokenizer: expected a file of the tokenizers library, found none"
    )


def test_a_template_is_compared(pieces: Made) -> None:
    record = pieces.bundle.manifest.tokenizers
    assert record is not None
    template = SourceTemplate((1,), (2,))
    check = pieces.replace(tokenizers=dataclasses.replace(record, template=template))
    assert not passes(check)
    assert check.problem.startswith("source tokenizer: expected 'a' -> [")
    assert check.problem.endswith(", 2]") and "found [1, " in check.problem


def test_a_template_in_place_of_the_files_own_passes_if_it_is_the_same(shared: Made) -> None:
    record = shared.bundle.manifest.tokenizers
    assert record is not None
    same = dataclasses.replace(record, template=SourceTemplate((), (2,)))
    assert passes(shared.replace(tokenizers=same))
    other = dataclasses.replace(record, template=SourceTemplate((), ()))
    assert not passes(shared.replace(tokenizers=other))


def test_languages_are_compared(make: Make, byte_level: Tokenizer) -> None:
    made = make(
        TokenizerFiles(
            byte_level,
            byte_level,
            SourceTemplate(("source_language",), (2,)),
            Languages({"de": 300, "fr": 301}, "first", "de"),
        )
    )
    assert passes(made.check)
    check = made.replace(languages=Languages({"de": 300, "fr": 302}, "first", "de"))
    assert check.problem.startswith("source tokenizer: expected 'a' in fr -> [301, ")


def piece_ids(data: Data) -> None:
    ids = data["pieces"]
    ids["a"], ids["e"] = ids["e"], ids["a"]


PIECE_CHANGES: list[tuple[Change, str]] = [
    (piece_ids, "tokenizer: expected '"),
    (lambda data: data["pieces"].pop("e"), "tokenizer: expected 'e' -> "),
    (lambda data: data.update(unknown=None), "tokenizer: expected unknown 0, found None"),
    (lambda data: data.update(leading_code=True), "tokenizer: expected leading_code False, "),
]


@pytest.mark.parametrize(("change", "problem"), PIECE_CHANGES)
def test_a_difference_of_pieces_is_named(change: Change, problem: str, pieces: Made) -> None:
    check = pieces.change("vocabulary.json", change)
    assert not passes(check) and check.problem.startswith(problem)


def test_a_vocabulary_in_another_order_passes(pieces: Made) -> None:
    assert passes(pieces.change("vocabulary.json", reordered))


def _trained(path: Path, **settings: Any) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(path.with_suffix("")),
        vocab_size=PIECES - 150,
        minloglevel=2,
        **settings,
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"normalization_rule_name": "nmt_nfkc_cf"}, "tokenizer: expected "),
        ({"normalization_rule_name": "identity"}, "tokenizer: expected "),
        ({"model_type": "bpe"}, "tokenizer: expected "),
        ({"add_dummy_prefix": False}, "tokenizer: expected "),
    ],
)
def test_another_sentencepiece_model_is_named(
    settings: dict[str, Any], problem: str, pieces: Made
) -> None:
    _trained(pieces.bundle.path("sentencepiece.model"), **settings)
    check = pieces.check
    assert not passes(check) and check.problem.startswith(problem)


def test_settings_of_training_in_a_sentencepiece_model_pass(pieces: Made, unigram: Path) -> None:
    """Its bytes differ: they say how and where it was trained."""
    path = pieces.bundle.path("sentencepiece.model")
    _trained(path, max_sentence_length=5000)
    assert path.read_bytes() != unigram.read_bytes()
    assert passes(pieces.check)


def test_a_damaged_sentencepiece_model_is_named(pieces: Made) -> None:
    pieces.bundle.path("sentencepiece.model").write_bytes(b"no model")
    assert pieces.check.problem.startswith("tokenizer: not a SentencePiece model")


def test_another_kind_of_tokenizer_is_named(pieces: Made, shared: Made) -> None:
    shutil.copy(shared.bundle.path("tokenizer.json"), pieces.bundle.directory / "other.json")
    record = shared.bundle.manifest.tokenizers
    assert record is not None
    check = pieces.replace(
        tokenizers=dataclasses.replace(record, source="other.json", target="other.json")
    )
    assert check.problem == (
        "tokenizer: expected a SentencePiece model, found a file of the tokenizers library"
    )
