"""`dragoman train` on pairs of texts, from the file that describes it to a bundle."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Encoding

from dragoman.runtime.texts.codecs.library import LibraryTokenizer

from .conftest import status_of
from .test_disk_full import limited

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]
Spawn = Callable[..., Outcome]

SETTINGS: dict[str, dict[str, object]] = {
    "model": {"preset": "tiny", "max_source_positions": 24, "max_target_positions": 24},
    "vocabulary": {"size": 60},
    "training": {"epochs": 3, "batch_tokens": 64, "warmup_steps": 20, "average_epochs": 2},
}


def arguments_in(directory: Path) -> list[str]:
    """Of a training that takes seconds, without its output; its files are in a directory."""
    animals, food = ("cat", "dog", "otter", "mouse"), ("bread", "cheese", "nuts", "fish")
    pairs = [f"the {a} eats {f}\tel {a} come {f}\n" for a in animals for f in food]
    (directory / "train.tsv").write_text("".join([*pairs, pairs[0], "\tnada\n"]), encoding="utf-8")
    (directory / "dev.tsv").write_text("".join(pairs[:4]), encoding="utf-8")
    (directory / "en-es.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    files = [directory / name for name in ("en-es.json", "train.tsv", "dev.tsv")]
    return ["train", str(files[0]), "--pairs", str(files[1]), "--dev", str(files[2])]


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    return arguments_in(tmp_path)


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_from_pairs_to_a_bundle(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = dragoman(*arguments, "-o", tmp_path / "model", "--threads", 1)
    assert trained.returncode == 0, trained.stderr
    assert "16 of 18 pairs kept (1 a duplicate, 1 an empty side)" in trained.stderr
    assert "validation loss" in trained.stderr and "perplexity" in trained.stderr
    lines = trained.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["held-out BLEU", "held-out chrF"]
    assert lines[-1] == f"Next: dragoman build {tmp_path / 'model'} -o bundles/model"
    built = dragoman("build", tmp_path / "model", "-o", tmp_path / "bundle", "--threads", 1)
    assert built.returncode == 0, built.stderr
    told = dragoman("run", tmp_path / "bundle", "the cat eats fish", "--max-new-tokens", 8)
    assert told.returncode == 0 and len(told.stdout.splitlines()) == 1 and not told.stderr
    source = ("the cat 漢 eats", "漢ß漢", "")
    warning = "Warning: 4 of 17 characters (23.5%) are not in the vocabulary: '漢', 'ß'\n"
    encode, encoded = LibraryTokenizer.encode, list[str]()

    def recorded(tokenizer: LibraryTokenizer, text: str, *pair: Any, **how: Any) -> Encoding:
        encoded.extend([text] * (text in source[:2]))
        return encode(tokenizer, text, *pair, **how)

    monkeypatch.setattr(LibraryTokenizer, "encode", recorded)
    for stream in ([], ["--stream"]):
        told = dragoman("run", tmp_path / "bundle", *source, "--max-new-tokens", 2, *stream)
        assert told.returncode == 0 and told.stderr == warning
    assert encoded == 2 * [*source[:2]]


def test_from_corpora_to_a_bundle_judged_by_several_references(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    """All files are named by the one that describes the training, relative to it."""
    pairs = (tmp_path / "train.tsv").read_text(encoding="utf-8").splitlines()[:16]
    (tmp_path / "back.tsv").write_text(pairs[3].replace("the", "a"), encoding="utf-8")
    sources, targets = zip(*(pair.split("\t") for pair in pairs[:4]), strict=True)
    more = [target.replace("come", "se come") for target in targets]
    for name, lines in (("dev.en", sources), ("1.es", targets), ("2.es", more)):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    corpora = [{"files": ["train.tsv"]}, {"files": ["back.tsv"], "weight": 2.5, "prefix": "<BT>"}]
    files = {"corpora": corpora, "dev": ["dev.en", "1.es", "2.es"]}
    Path(arguments[1]).write_text(json.dumps(SETTINGS | files), encoding="utf-8")
    output = ["-o", tmp_path / "model", "--threads", 1, "--epochs", 1]
    trained = dragoman(*arguments[:2], *output)
    assert trained.returncode == 0, trained.stderr
    assert "17 of 19 pairs kept" in trained.stderr
    assert "held-out BLEU" in trained.stdout and "nrefs:2|" in trained.stdout
    refused = dragoman(*arguments, *output)
    assert refused.returncode == 2 and "--pairs or the section corpora, found" in refused.stderr
    bundle = tmp_path / "bundle"
    built = dragoman("build", tmp_path / "model", "-o", bundle, "--threads", 1)
    assert built.returncode == 0, built.stderr
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert "nrefs:2|" in json.dumps(manifest["parity"])
    tagged = dragoman("run", bundle, "<BT> the cat eats fish", "--max-new-tokens", 8)
    assert tagged.returncode == 0 and len(tagged.stdout.splitlines()) == 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupts."""
    directory = tmp_path_factory.mktemp("whole")
    output = ["-o", str(directory / "model"), "--threads", "1"]
    assert status_of([*arguments_in(directory), *output]) == 0
    return directory / "model"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_training_ends_with_the_same_weights(
    dragoman: Dragoman, arguments: list[str], whole: Path, tmp_path: Path, how: signal.Signals
) -> None:
    part = tmp_path / "part"
    command = [sys.executable, "-m", "dragoman", *arguments, "-o", str(part), "--threads", "1"]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1:"):
                break
        process.send_signal(how)
        rest = process.stderr.read()
    again = [*arguments, "-o", str(part), "--threads", "1"]
    if how is not signal.SIGKILL:
        assert process.returncode == 128 + how
        last = rest.splitlines()[-1]
        stopped, _, command_line = last.partition(". To go on: ")
        assert stopped.startswith("Stopped after step ")
        assert shlex.split(command_line) == ["dragoman", *again]
    assert not (part / "model.safetensors").exists()
    resumed = dragoman(*again)
    assert resumed.returncode == 0
    assert "epoch 1:" not in resumed.stderr, "it began anew"
    assert weights(part) == weights(whole)


def test_torchrun_trains_the_same_model_and_prints_once(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    exact = {"model": {"dropout": 0.0}, "training": {"adam_epsilon": 1e-3}}
    settings = {name: {**SETTINGS[name], **exact.get(name, {})} for name in SETTINGS}
    Path(arguments[1]).write_text(json.dumps(settings), encoding="utf-8")
    more = ["--threads", "1", "--device", "cpu", "-o"]
    one = dragoman(*arguments, *more, tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    # Any free port, and no need for a name of this machine that others can look up.
    torchrun += ["--standalone", "--local-addr", "localhost"]
    command = [*torchrun, "-m", "dragoman", *arguments, *more, str(tmp_path / "two")]
    two = subprocess.run(command, capture_output=True, text=True, check=False)
    assert two.returncode == 0, two.stderr
    assert two.stdout.splitlines()[:-1] == one.stdout.splitlines()[:-1]
    for line in ("16 of 18 pairs kept", "epoch 1:", "epoch 3:", "weights  from"):
        assert one.stderr.count(line) == two.stderr.count(line) == 1
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_no_space_for_a_checkpoint(
    spawn: Spawn, dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    """One line; what was saved before is whole, and training goes on from there."""
    full = spawn(*arguments, "-o", tmp_path / "model", "--threads", 1, prelude=limited(100_000))
    assert full.returncode == 2
    error = full.stderr.splitlines()[-1]
    assert error.startswith(f"Error: cannot write {tmp_path / 'model' / 'training'}")
    assert "File too large" in error
    assert not list(tmp_path.glob("**/*.partial"))
    assert dragoman(*arguments, "-o", tmp_path / "model", "--threads", 1).returncode == 0


def test_another_file_in_the_same_directory_is_refused(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    output = ["-o", tmp_path / "model", "--threads", 1]
    assert dragoman(*arguments, *output, "--epochs", 1).returncode == 0
    changed = SETTINGS | {"training": SETTINGS["training"] | {"seed": 2}}
    Path(arguments[1]).write_text(json.dumps(changed), encoding="utf-8")
    before = weights(tmp_path / "model")
    refused = dragoman(*arguments, *output)
    assert refused.returncode == 2
    assert "belongs to a training with other options or data" in refused.stderr
    assert weights(tmp_path / "model") == before


def test_more_epochs_continue_a_training(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    output = ["-o", tmp_path / "model", "--threads", 1]
    assert dragoman(*arguments, *output, "--epochs", 1).returncode == 0
    longer = dragoman(*arguments, *output, "--epochs", 2)
    assert longer.returncode == 0
    assert "epoch 2:" in longer.stderr and "epoch 1:" not in longer.stderr


def test_pairs_are_counted_even_if_all_are_kept(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    pairs = Path(arguments[3])
    lines = pairs.read_text(encoding="utf-8").splitlines(keepends=True)[:16]
    pairs.write_text("".join(lines), encoding="utf-8")
    kept = dragoman(*arguments, "-o", tmp_path / "new", "--epochs", 1, "--threads", 1)
    assert "16 of 16 pairs kept\n" in kept.stderr


def test_a_yaml_file_in_capitals_and_pairs_of_unequal_lengths(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    described = tmp_path / "EN-ES.YML"
    described.write_text(
        "model: {preset: tiny}\nvocabulary: {size: 8000}\n"
        "training: {epochs: 4, cool_down_epochs: 3}\n",
        encoding="utf-8",
    )
    arguments[1] = str(described)
    Path(arguments[3]).write_text(f"1\t{'one and ' * 9}\n2\ttwo\n", encoding="utf-8")
    refused = dragoman(*arguments, "-o", tmp_path / "new", "--epochs", 2)
    assert refused.returncode == 2 and not list(tmp_path.glob("**/*.safetensors"))
    about_epochs, warning, count, error = refused.stderr.splitlines()
    assert about_epochs == "--epochs 2: the cool-down has 2 epochs, too, instead of 3"
    assert warning.startswith("Warning: 1 of 2 pairs (50%) are left out because their lengths ")
    assert 'raise "ratio" in the section "cleaning"' in warning
    assert count == "1 of 2 pairs kept (1 unequal lengths)"
    assert error.startswith(f"Error: {warning.removeprefix('Warning: ')}; vocabulary: expected ")
    unnamed = dragoman("train", arguments[3], *arguments[2:])
    expected = "expected a recipe, or a file whose name ends in .json, .yaml, .yml, found "
    assert unnamed.returncode == 2 and expected in unnamed.stderr
    of_recipe = dragoman("train", "g2p-en", *arguments[2:])
    assert of_recipe.returncode == 2 and "which has data of its own" in of_recipe.stderr


def test_a_training_is_changed_and_finished(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path
) -> None:
    output = ["-o", tmp_path / "model", "--threads", 1]
    metrics = ["--metric", "chrf", "--metric", "bleu:char", "--metric", "character-error"]
    options = [*metrics, "--monitor", "metric", "--save-every", 1, "--epochs", 1]
    first = dragoman(*arguments, *output, *options)
    assert first.returncode == 0, first.stderr
    names = [line.partition(": ")[0] for line in first.stdout.splitlines()[:3]]
    assert names == ["held-out chrF", "held-out BLEU (char)", "held-out character error"]
    assert "|tok:char|" in first.stdout
    changed = dragoman(
        *arguments, *output, *metrics, "--epochs", 2, "--change", "learning_rate_scale=0.5"
    )
    assert changed.returncode == 0, changed.stderr
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    assert list(record["metrics"]) == ["chrf", "bleu:char", "character-error"]
    assert record["training"]["learning_rate_scale"] == 0.5
    assert "average" in [candidate["name"] for candidate in record["candidates"]]
    lines = (tmp_path / "model" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[1])["changed"]["learning_rate_scale"] == 0.5
    finished = dragoman(*arguments, *output, *metrics, "--finish")
    assert finished.returncode == 0 and "epoch 3:" not in finished.stderr


@pytest.mark.parametrize("from_file", [True, False])
def test_words_are_not_judged_by_bleu(
    dragoman: Dragoman, arguments: list[str], tmp_path: Path, from_file: bool
) -> None:
    """BLEU is 0 for outputs of one to three words, however right they are."""
    for name in ("train.tsv", "dev.tsv"):
        lines = (tmp_path / name).read_text(encoding="utf-8").splitlines()
        words = [f"{line.partition(chr(9))[0]}\t{line.split()[-1]}\n" for line in lines]
        (tmp_path / name).write_text("".join(words), encoding="utf-8")
    settings = SETTINGS | {"vocabulary": {"size": 40}}
    Path(arguments[1]).write_text(json.dumps(settings), encoding="utf-8")
    metric = [] if from_file else ["--metric", "bleu", "--metric", "exact-match"]
    output = ["-o", tmp_path / "model", "--threads", 1, "--epochs", 1]
    trained = dragoman(*arguments, *metric, *output)
    assert trained.returncode == 0, trained.stderr
    assert "BLEU is not computed, since it is 0 for the references themselves" in trained.stderr
    assert "held-out BLEU" not in trained.stdout and "held-out chrF: " in trained.stdout
    record = json.loads((tmp_path / "model" / "recipe.json").read_text(encoding="utf-8"))
    assert {*record["metrics"]} == {"chrf", "exact-match"}
    if not from_file:
        return
    for again in ([], ["--metric", "bleu"]):
        built = dragoman(
            "build",
            tmp_path / "model",
            "-o",
            tmp_path / "bundle",
            "--threads",
            1,
            "--force",
            *again,
        )
        assert built.returncode == 0, built.stderr
        text = " ".join((built.stdout + built.stderr).split())
        assert "BLEU 0.00" not in text and "chrF" in text and "exact match" in text
    assert "BLEU is not computed, since it is 0 for the references themselves" in text


def test_what_is_refused_at_once(dragoman: Dragoman, arguments: list[str], tmp_path: Path) -> None:
    """Before anything is read."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "model.safetensors").touch()
    refused = dragoman(*arguments, "-o", there)
    assert refused.stderr == (
        f"Error: {there}: expected a new directory, or one with the state of a training, found a "
        "checkpoint\n"
    )
    refused = dragoman(*arguments, "-o", tmp_path / "new", "--from", "g2p-de")
    assert "or the name of one that ships with Dragoman" in refused.stderr
    for option, message in (
        (["--metric", "blue"], "metric: expected one of bleu, chrf"),
        (["--metric", "bleu:en"], "expected a tokenizer of 13a, intl, char, zh, ja-mecab, flores"),
        (["--change", "seed=2"], "found seed; start another training in a new directory"),
        (["--device", "gpu"], "expected cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "device cuda:99: expected 100 GPUs that PyTorch can use, found"),
        (["--finish"], "new/training: expected a training to finish, found none of an epoch"),
        (["--change", "patience"], "--change: expected OPTION=VALUE, found 'patience'"),
    ):
        refused = dragoman(*arguments, "-o", tmp_path / "new", *option)
        assert refused.returncode == 2 and message in refused.stderr
    taken = tmp_path / "g2p-en.json"
    taken.write_text(json.dumps(SETTINGS), encoding="utf-8")
    refused = dragoman("train", taken, *arguments[2:], "-o", tmp_path / "new")
    assert f"Error: {taken}: expected a file of another name, found that of" in refused.stderr
    assert not (tmp_path / "new").exists()
