"""Tokens of texts are compared with the checkpoint's own tokenizer, read by its own library."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.cli.shared.tables import print_parity
from dragoman.export.checkpoints import OpenedCheckpoint
from dragoman.export.tokenizers import PieceModel, TokenizerFiles
from dragoman.runtime import Bundle
from dragoman.runtime.format.parity import Check
from dragoman.runtime.format.texts import SourceTemplate
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.settings.head import Head
from dragoman.verification.inputs.items import References
from dragoman.verification.inputs.parity_inputs import ParityInputs
from dragoman.verification.parity import unrun
from dragoman.verification.parity_rows import parity_rows
from dragoman.verification.stored import texts
from dragoman.verification.stored.texts import compare_texts
from dragoman.verification.stored.tokenizer_behaviour import TEXTS

LETTERS = [chr(code) for code in range(33, 127)]
NOTHING = ParityInputs("", [])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A Hugging Face directory with BERT's tokenizer and two added tokens."""
    directory = tmp_path / "words"
    directory.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "cafe"]
    vocabulary += [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (directory / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer: Any = transformers.BertTokenizer(str(directory / "vocab.txt"))
    tokenizer.add_tokens(["[E1]"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return directory


def compared(
    directory: Path,
    files: TokenizerFiles,
    tmp_path: Path,
    *,
    change: Callable[[Any], None] | None = None,
    inputs: ParityInputs = NOTHING,
    head: Head | None = None,
) -> Check:
    """Write the bundle's tokenizers, change the file of the target, and compare."""
    written = files.write(ScratchWriter(bundle := tmp_path / "bundle"))
    if change is not None:
        path = bundle / written.target
        tokenizer = Tokenizer.from_file(str(path))
        change(tokenizer)
        tokenizer.save(str(path))
    manifest = SimpleNamespace(
        tokenizers=written, languages=files.languages, head=head, speech=None
    )
    check = compare_texts(
        cast(Bundle, SimpleNamespace(manifest=manifest, directory=bundle)),
        cast(OpenedCheckpoint, SimpleNamespace(directory=directory, tokenizers=files)),
        inputs,
    )
    assert check is not None and check.name == "tokens of texts"
    return check


def of_words(words: Path) -> TokenizerFiles:
    """The file as `transformers` writes it."""
    path = words / "tokenizer.json"
    return TokenizerFiles(path, path)


@pytest.fixture(autouse=True)
def bundle_directory(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()


def test_the_checkpoints_own_tokenizer_gives_the_same(words: Path, tmp_path: Path) -> None:
    inputs = ParityInputs(
        "", [], texts=["hello worlds"], references=References("", [("a", "caf\u00e9 b")], [1])
    )
    check = compared(words, of_words(words), tmp_path, inputs=inputs)
    assert check.passed and check.problem == check.note == ""
    # Each text as a source and as a target, and decoded, with seven added tokens in six places.
    assert check.compared > 2 * (len(TEXTS) + 7 * 6) and check.unit == "texts"


def drop_case(tokenizer: Any) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)


def drop_accents(tokenizer: Any) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)


def keep_controls(tokenizer: Any) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, clean_text=False)


def split_at_spaces(tokenizer: Any) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()


def join_without_spaces(tokenizer: Any) -> None:
    tokenizer.decoder = decoders.Fuse()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (drop_case, r"source text 'A': token 1: expected \d+ \('a'\), found \d+ \('A'\)"),
        (
            drop_accents,
            r"source text 'café': token 1: expected 8 \('cafe'\), found 1 \('\[UNK\]'\)",
        ),
        (keep_controls, r"source text '\ufffd': token 1: expected 3 \('\[SEP\]'\), .*"),
        (split_at_spaces, r"source text 'Hello, world!': token 2: expected \d+ \(','\), found .*"),
        (
            join_without_spaces,
            r"tokens \[5, .*\] of 'Hello, world!' are decoded to .*, expected .*",
        ),
    ],
)
def test_the_text_and_the_first_differing_token_are_named(
    change: Callable[[Any], None], problem: str, words: Path, tmp_path: Path
) -> None:
    check = compared(words, of_words(words), tmp_path, change=change)
    assert not check.passed and 0 < check.differing < check.compared
    assert re.fullmatch(problem, check.problem), check.problem


def test_an_added_token_that_the_bundle_lacks_is_found(words: Path, tmp_path: Path) -> None:
    data = json.loads((words / "tokenizer.json").read_text())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != "<|user|>"]
    (lacking := tmp_path / "lacking.json").write_text(json.dumps(data))
    check = compared(words, TokenizerFiles(lacking, lacking), tmp_path)
    assert not check.passed
    assert check.problem.startswith("source text '<|user|>': token 1: expected ")


def test_a_setting_beside_the_file_counts(words: Path, tmp_path: Path) -> None:
    """`transformers` follows tokenizer_config.json, which the bundle's file is not made from."""
    path = words / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_lower_case": False}))
    check = compared(words, of_words(words), tmp_path)
    assert not check.passed and "token 1: expected" in check.problem


def test_encoder_only_models_are_compared_on_pairs(words: Path, tmp_path: Path) -> None:
    head = Head("embedding", outputs=8, d_model=8)
    check = compared(words, of_words(words), tmp_path, head=head)
    assert check.passed, check.problem
    assert check.compared > 2 * len(TEXTS)

    def other_segments(tokenizer: Any) -> None:
        data = json.loads(tokenizer.to_str())
        for part in data["post_processor"]["pair"]:
            next(iter(part.values()))["type_id"] = 0
        tokenizer.post_processor = Tokenizer.from_str(json.dumps(data)).post_processor

    check = compared(words, of_words(words), tmp_path, head=head, change=other_segments)
    assert not check.passed and "expected segments [0, " in check.problem


@pytest.mark.parametrize("lower_cases", [False, True])
def test_modules_of_sentence_transformers(lower_cases: bool, words: Path, tmp_path: Path) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "words", "type": "sentence_transformers.models.Transformer"}
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (words / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": lower_cases}))
    path = words / "tokenizer.json"
    for name, flag in (("tokenizer.json", "lowercase"), ("tokenizer_config.json", "do_lower_case")):
        text = (words / name).read_text()
        (words / name).write_text(text.replace(f'"{flag}": true', f'"{flag}": false'))
    head, given = Head("embedding", outputs=8, d_model=8), of_words(words)
    check = compared(tmp_path, given, tmp_path, head=head)
    assert check.note == "" and check.passed != lower_cases
    if lower_cases:
        assert "text 'A': token 1: expected" in check.problem
        tokenizer: Any = Tokenizer.from_file(str(path))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), tokenizer.normalizer])
        files = TokenizerFiles(tokenizer, tokenizer)
        assert compared(tmp_path, files, tmp_path, head=head).passed


@pytest.mark.parametrize("missing", ["transformers", "sentencepiece"])
def test_a_missing_package_is_named(
    missing: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(texts, "import_module", absent)
    check = compared(words, of_words(words), tmp_path, change=drop_case)
    assert check.passed and check.compared == 0
    assert check.note == (
        f"not compared: the checkpoint's tokenizer needs {missing}: pip install 'dragoman[verify]'"
    )


def test_the_note_is_in_the_table_and_on_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "not compared: [verify] is not there"
    parity = unrun([Check("tokens of texts", 0, "texts", 0, passed=True, note=note)], NOTHING)
    row = parity_rows(parity)[0]
    assert (row.what, row.found, row.passed) == ("tokens of texts", note, True)
    monkeypatch.setenv("COLUMNS", "150")
    print_parity(parity)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"proof tokens of texts {note}" in shown


def test_what_the_library_cannot_read_is_said(words: Path, tmp_path: Path) -> None:
    path = words / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "TheirTokenizer", "auto_map": {}}))
    files = of_words(words)
    (words / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    files = dataclasses.replace(
        files, source=tmp_path / "tokenizer.json", target=tmp_path / "tokenizer.json"
    )
    (words / "vocab.txt").unlink()
    check = compared(words, files, tmp_path)
    assert check.passed and check.compared == 0
    assert check.note.startswith("not compared: the checkpoint's tokenizer cannot be read: ")


def trained(directory: Path) -> Path:
    """As `dragoman train` leaves a directory, with one tokenizer for both sides."""
    vocabulary = {token: n for n, token in enumerate(["<s>", "</s>", "<unk>", "\u2581", *LETTERS])}
    tokenizer: Any = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    (directory / "config.json").write_text(json.dumps({"format": "dragoman"}))
    path = directory / "source_tokenizer.json"
    tokenizer.save(str(path))
    tokenizer.save(str(directory / "target_tokenizer.json"))
    return path


def test_a_trained_model_is_held_to_what_it_was_trained_with(tmp_path: Path) -> None:
    path = trained(tmp_path)
    files = TokenizerFiles(path, tmp_path / "target_tokenizer.json")
    assert compared(tmp_path, files, tmp_path).passed

    def keep_ends(tokenizer: Any) -> None:
        tokenizer.normalizer = normalizers.NFKC()

    check = compared(tmp_path, files, tmp_path, change=keep_ends)
    assert not check.passed and check.problem.startswith("target text ")


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("spm") / "spm"
    lines = ["the cat sat on the mat", "a cat, a dog and the bird", "naïve café: où ?"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        vocab_size=45,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def numbered(spm: Path, *, code: bool) -> Mapping[str, int]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    pieces = {processor.id_to_piece(i): i + 4 for i in range(3, processor.get_piece_size())}
    return pieces | ({">>fra<<": 3} if code else {})


def test_pieces_are_compared_with_sentencepiece(spm: Path, tmp_path: Path) -> None:
    """Beside CTranslate2's model.bin; with the special tokens around a source."""
    (tmp_path / "model.bin").touch()
    model = PieceModel(spm, numbered(spm, code=True), 1, leading_code=True)
    files = TokenizerFiles(model, model, SourceTemplate((), (2,)))
    inputs = ParityInputs("", [], texts=[">>fra<< the cat"])
    check = compared(tmp_path, files, tmp_path, inputs=inputs)
    assert check.passed, check.problem
    assert check.compared > 2 * len(TEXTS)


def test_prompts_that_the_decoder_of_whisper_removes_are_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "whisper"
    directory.mkdir()
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: n for n, token in enumerate([*letters, special[0]])}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    tokenizer: Any = transformers.WhisperTokenizer(
        vocab=str(directory / "vocab.json"),
        merges=str(directory / "merges.txt"),
        extra_special_tokens=special[1:],
    )
    tokenizer.save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    path = directory / "tokenizer.json"
    check = compared(directory, TokenizerFiles(None, path), tmp_path)
    assert check.passed, check.problem
    assert check.compared > len(TEXTS)
