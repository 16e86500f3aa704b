"""From a directory of Hugging Face to text, by two commands; the texts are those of its library."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import sacrebleu
import sentencepiece
import torch
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

from dragoman.export.families import FAMILIES
from dragoman.runtime import read_bundle

transformers: Any = importlib.import_module("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:Recommended", "ignore::FutureWarning")

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

ROOT = Path(__file__).parents[2]
TEXTS = ["a small house", "the graph", "it runs what deploys, and more of it"]


def spm(path: Path, kind: str) -> None:
    lines = [line for line in (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines() if line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=300, model_type=kind,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    path.write_bytes(model.getvalue())


SIZES = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
}


@torch.no_grad()
def varied(model: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            norm = parameter.dim() == 1 and "norm" in name and name.endswith("weight")
            std = 1.0 if norm else 0.1 if parameter.dim() == 1 else 0.25
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model.eval()


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("opus-mt")
    for side, kind in (("source", "unigram"), ("target", "bpe")):
        spm(directory / f"{side}.spm", kind)
    pieces = {"</s>": 0, "<unk>": 1}
    for side in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / f"{side}.spm"))
        for index in range(processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(index), len(pieces))
    pieces["<pad>"] = len(pieces)
    (directory / "vocab.json").write_text(json.dumps(pieces))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"})
    )
    pad = pieces["<pad>"]
    config = transformers.MarianConfig(
        **SIZES, vocab_size=len(pieces), pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=None,
    )  # fmt: skip
    model = varied(transformers.MarianMTModel(config))
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0,
        bad_words_ids=[[pad]], max_length=20, num_beams=4,
    )  # fmt: skip
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nllb")
    spm(directory / "sentencepiece.bpe.model", "bpe")
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=str(directory / "sentencepiece.bpe.model")
    ).get_piece_size()
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        directory,
        added_tokens_decoder={
            pieces + 1 + i: transformers.AddedToken(token, special=True, normalized=False)
            for i, token in enumerate([*NLLB_CODES, "<mask>"])
        },
    )
    tokenizer.save_pretrained(directory)
    config = transformers.M2M100Config(**SIZES, vocab_size=len(tokenizer))
    model = varied(transformers.M2M100ForConditionalGeneration(config))
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, max_length=20, bad_words_ids=[[1]]
    )
    model.save_pretrained(directory)
    return directory


def theirs(kind: str, directory: Path, **settings: Any) -> list[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        directory, **settings.pop("tokenizer", {})
    )
    model = getattr(transformers, kind).from_pretrained(directory)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    if code := settings.pop("target", None):
        settings["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids(code)
    tokens = model.generate(**batch, **settings)
    return [t.strip() for t in tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def test_a_marian_directory_becomes_a_bundle_that_translates(
    marian: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("\n".join(TEXTS) + "\n")
    built = dragoman("build", marian, "-o", bundle, "--inputs", inputs)
    assert built.returncode == 0, built.stderr
    assert "3 of 3 identical" in " ".join(built.stdout.split())
    parity = read_bundle(bundle).manifest.parity
    assert parity is not None
    (check,) = (check for check in parity.checks if check.name == "tokens of texts")
    assert check.passed and check.compared > 200 and not check.note  # by MarianTokenizer
    found = dragoman("run", bundle, *TEXTS)
    assert found.returncode == 0, found.stderr
    assert [line.strip() for line in found.stdout.splitlines()] == theirs("MarianMTModel", marian)
    refused = dragoman("run", bundle, "--target-language", "fr", "a")
    assert refused.returncode == 2
    assert "this model has no languages" in refused.stderr


def test_translations_are_judged_by_bleu_and_chrf(
    marian: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    """References are what `transformers` writes, but for one."""
    inputs, references = tmp_path / "inputs.txt", tmp_path / "references.txt"
    inputs.write_text("\n".join(TEXTS) + "\n")
    right = theirs("MarianMTModel", marian, num_beams=1)
    written = [*right[:2], "something else of five words"]
    references.write_text("\n".join(written) + "\n")
    command = ("build", marian, "--inputs", inputs, "--references", references)
    done = dragoman(*command, "-o", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    parity = read_bundle(tmp_path / "bundle").manifest.parity
    assert parity is not None
    expected = sacrebleu.corpus_bleu(
        right, [[*right[:2], "something else of five words"]], force=True
    ).score
    bleu, chrf = parity.tasks
    assert (bleu.metric, chrf.metric, bleu.pairs, bleu.higher_is_better) == (
        "BLEU",
        "chrF",
        3,
        True,
    )
    assert bleu.oracle == bleu.bundle == pytest.approx(expected)
    assert (bleu.allowed, bleu.chance) == (0.0, 1.0)
    assert "|tok:13a|" in bleu.signature
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert f"BLEU of 3 texts {expected:.2f}, trained model {expected:.2f} 0.00 worse" in shown
    assert f"BLEU of 3 texts: {expected:.2f}, trained model {expected:.2f}" in " ".join(
        dragoman("inspect", tmp_path / "bundle").stdout.split()
    )
    exact = dragoman(*command, "-o", tmp_path / "other", "--metric", "exact-match")
    assert "exact match of 3 texts 66.67%, trained model 66.67%" in " ".join(
        exact.stdout.replace("│", " ").split()
    )
    references.write_text("one\n")
    refused = dragoman(*command, "-o", tmp_path / "refused")
    assert refused.returncode == 2 and not (tmp_path / "refused").exists()
    (line,) = refused.stderr.splitlines()
    assert ": expected 3 references, one for each input of " in line


def test_a_family_that_summarizes_is_judged_by_rouge(
    marian: Path, dragoman: Dragoman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {name for name, family in FAMILIES.items() if family.summarizes} == {"bart", "pegasus"}
    summarizing = dataclasses.replace(FAMILIES["marian"], summarizes=True)
    monkeypatch.setitem(FAMILIES, "marian", summarizing)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\tsomething else\n" for text in TEXTS))
    done = dragoman("build", marian, "-o", tmp_path / "bundle", "--inputs", pairs)
    assert done.returncode == 0, done.stderr
    parity = read_bundle(tmp_path / "bundle").manifest.parity
    assert parity is not None and [task.metric for task in parity.tasks] == ["ROUGE-L"]


def test_references_need_the_language_they_are_in(
    nllb: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    pairs, target = tmp_path / "pairs.tsv", "deu_Latn"
    source = {"src_lang": "eng_Latn"}
    right = theirs(
        "M2M100ForConditionalGeneration", nllb, tokenizer=source, target=target, num_beams=1
    )
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, right, strict=True)))
    command = ("build", nllb, "-o", tmp_path / "bundle", "--references", pairs)
    refused = dragoman(*command)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("Error: --target-language: expected one of the 202 languages")
    unknown = dragoman(*command, "--target-language", "german")
    assert unknown.returncode == 2 and "found 'german'" in unknown.stderr
    done = dragoman(*command, "--source-language", "eng_Latn", "--target-language", target)
    assert done.returncode == 0, done.stderr
    parity = read_bundle(tmp_path / "bundle").manifest.parity
    assert parity is not None and parity.inputs == "pairs.tsv, 3 lines"
    assert [task.bundle for task in parity.tasks] == pytest.approx([100, 100])


def test_a_multilingual_directory_becomes_a_bundle_with_languages(
    nllb: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    inputs = tmp_path / "inputs.txt"
    inputs.write_text("\n".join(TEXTS) + "\n")
    built = dragoman("build", nllb, "-o", bundle, "--inputs", inputs)
    assert built.returncode == 0, built.stderr
    for source, target in (("eng_Latn", "deu_Latn"), ("fra_Latn", "zul_Latn")):
        options = ["--source-language", source, "--target-language", target]
        found = dragoman("run", bundle, *options, *TEXTS)
        assert found.returncode == 0, found.stderr
        expected = theirs(
            "M2M100ForConditionalGeneration", nllb, tokenizer={"src_lang": source}, target=target
        )
        assert [line.strip() for line in found.stdout.splitlines()] == expected
    missing = dragoman("run", bundle, "--source-language", "eng_Latn", "a")
    assert missing.returncode == 2
    assert "--target-language: expected one of the" in missing.stderr
    unknown = dragoman("run", bundle, "--source-language", "eng", "--target-language", "deu", "a")
    assert unknown.returncode == 2
    assert "the closest are deu_Latn" in unknown.stderr


def test_an_unknown_family_lists_the_known_ones(dragoman: Dragoman, tmp_path: Path) -> None:
    directory = tmp_path / "bert"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    outcome = dragoman("build", directory, "-o", tmp_path / "out")
    assert outcome.returncode == 2
    assert "expected one of albert, " in outcome.stderr
    assert "found 'llama'" in outcome.stderr
