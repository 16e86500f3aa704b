"""A mistake in the command: one line on standard error, exit status 2, nothing written."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]


def error_of(outcome: Outcome) -> str:
    """The one line there is."""
    assert outcome.returncode == 2, outcome.stderr
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["run"], "Missing argument 'BUNDLE'"),
        (["run", "b", "--colour"], "--colour"),
        (["run", "b", "--backend", "tpu"], "'tpu' is not one of 'openvino'"),
        (["run", "b", "--threads", "0"], "'--threads': 0 is not in the range x>=1"),
        (["run", "b", "--max-new-tokens", "many"], "'many' is not a valid integer range"),
        (["run", "b", "--max-new-tokens", "0"], "0 is not in the range x>=1"),
        (["run", "b", "--min-new-tokens", "-1"], "-1 is not in the range x>=0"),
        (["run", "b", "--batch-size", "0"], "0 is not in the range x>=1"),
        (["export", "c"], "Missing option '-o' / '--output'"),
        (["build", "c", "-o", "o", "--precision", "fp8"], "'fp8' is not one of 'fp32', 'fp16'"),
        (["build", "c", "-o", "o", "--limit", "0"], "0 is not in the range x>=1"),
        (["verify", "b", "--limit", "3"], "expected a CHECKPOINT to compare with"),
        (["bench", "b", "--runs", "0"], "0 is not in the range x>=1"),
        (["train", "g2p-xx"], "unknown recipe 'g2p-xx', expected one of: g2p-en, verses-en"),
    ],
)
def test_a_command_that_is_not_one(dragoman: Dragoman, arguments: list[str], message: str) -> None:
    assert message in error_of(dragoman(*arguments))


LONG, DIGITS = "x" * 100_000, "9" * 4000


@pytest.mark.parametrize(
    "arguments",
    [
        *([LONG], ["run", LONG], ["run", f"--{LONG}"], ["run", "b", "--beams", LONG]),
        *(["run", "b", "--beams", "9" * 5000], ["run", "b", "--threads", DIGITS]),
        *(["run", "b", "--top-p", LONG], ["run", "b", "--backend", LONG]),
        *(["run", "b", "--task", LONG], ["build", LONG, "-o", "o"], ["train", LONG]),
        *(["build", "g2p-en", "-o", LONG], ["build", "g2p-en", "-o", "o", "--metric", LONG]),
        *(["optimize", LONG, "-o", "o"], ["attention", "b", "a", "-o", LONG], ["inspect", LONG]),
        *(["serve", LONG], ["serve", "b", "--port", DIGITS], ["report", LONG, "-o", "o"]),
    ],
    ids=lambda arguments: " ".join(word[:12] for word in arguments),
)
def test_no_error_echoes_a_long_value(dragoman: Dragoman, arguments: list[str]) -> None:
    assert len(error_of(dragoman(*arguments))) <= 1100


@pytest.mark.parametrize("option", ["--beams", "--max-new-tokens", "--prefix", "--must-contain"])
def test_no_error_of_a_model_echoes_a_long_value(run: Dragoman, option: str) -> None:
    value = DIGITS if option in ("--beams", "--max-new-tokens") else LONG
    assert len(error_of(run("a", option, value))) <= 1100


@pytest.mark.parametrize("command", ["run", "inspect", "bench"])
def test_no_bundle_there(dragoman: Dragoman, tmp_path: Path, command: str) -> None:
    missing = tmp_path / "missing"
    message = error_of(dragoman(command, missing))
    assert message == f"Error: {missing}: expected a bundle, found no such directory"
    missing.mkdir()
    assert error_of(dragoman(command, missing)).endswith("found no manifest.json in it")


@pytest.mark.parametrize("command", ["export", "build"])
def test_no_such_checkpoint(dragoman: Dragoman, tmp_path: Path, command: str) -> None:
    output = tmp_path / "out"
    message = error_of(dragoman(command, "g2p-de", "-o", output))
    assert "(g2p-en, verses-en, bible-en-es, bible-en-es-student), found 'g2p-de'" in message
    assert not output.exists()


def test_verify_without_its_checkpoint(dragoman: Dragoman, bundle: Path) -> None:
    assert "found 'nothing'" in error_of(dragoman("verify", bundle, "nothing"))


def test_verify_against_another_model(
    dragoman: Dragoman, bundle: Path, token_checkpoint: Path, tmp_path: Path
) -> None:
    config = (token_checkpoint / "config.json").read_text(encoding="utf-8")
    weights = (token_checkpoint / "model.safetensors").read_bytes()
    (tmp_path / "config.json").write_text(config.replace('"relu"', '"silu"'), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(weights)
    message = error_of(dragoman("verify", bundle, tmp_path))
    assert "was not made from a model like" in message
    assert message.endswith("their configurations differ in activation")


def test_paths_that_are_not_utf_8(dragoman: Dragoman, checkpoint: Path, tmp_path: Path) -> None:
    """Libraries take no other ones."""
    other = tmp_path / "o\udcff"
    message = error_of(dragoman("export", checkpoint, "-o", other))
    assert message.endswith("o\\udcff: expected a path in UTF-8")
    assert not other.exists()
    other.symlink_to(checkpoint)
    message = error_of(dragoman("export", other, "-o", tmp_path / "out"))
    assert "o\\udcff/config.json: expected a path in UTF-8" in message


@pytest.mark.parametrize("command", ["export", "build"])
def test_the_output_exists(
    dragoman: Dragoman, checkpoint: Path, bundle: Path, tmp_path: Path, command: str
) -> None:
    before = (bundle / "manifest.json").read_bytes()
    message = error_of(dragoman(command, checkpoint, "-o", bundle))
    assert f"{bundle} already exists" in message and "--force" in message
    assert (bundle / "manifest.json").read_bytes() == before
    # What is no bundle is not replaced even with --force.
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("Once", encoding="utf-8")
    message = error_of(dragoman(command, checkpoint, "-o", tmp_path / "thesis", "--force"))
    assert f"chapter1.tex is not part of a bundle: {tmp_path}/thesis will not be" in message
    assert (tmp_path / "thesis" / "chapter1.tex").read_text(encoding="utf-8") == "Once"


def test_force_replaces_a_bundle(
    dragoman: Dragoman, checkpoint: Path, bundle_copy: Path, copied_export: None
) -> None:
    (bundle_copy / "model.sig").write_text("old", encoding="utf-8")
    outcome = dragoman("export", checkpoint, "-o", bundle_copy, "--force")
    assert outcome.returncode == 0, outcome.stderr
    assert not (bundle_copy / "model.sig").exists()
    assert (bundle_copy / "manifest.json").exists()
    assert [path.name for path in bundle_copy.parent.iterdir()] == ["copy"]


@pytest.mark.parametrize("command", ["export", "build"])
@pytest.mark.parametrize("output", ["copy/source", "copy"])
def test_force_replaces_neither_the_checkpoint_nor_what_it_lies_in(
    dragoman: Dragoman, checkpoint: Path, bundle_copy: Path, command: str, output: str
) -> None:
    source = Path(shutil.copytree(checkpoint, bundle_copy / "source"))
    output = str(bundle_copy.parent / output)
    message = error_of(dragoman(command, source, "-o", output, "--force"))
    assert message.startswith(f"Error: {source}/") and "is not part of a bundle" in message
    assert {path.name for path in source.iterdir()} == {path.name for path in checkpoint.iterdir()}


def test_more_tokens_than_positions(dragoman: Dragoman, bundle: Path) -> None:
    message = error_of(dragoman("run", bundle, "word", "--max-new-tokens", 25))
    assert "--max-new-tokens: expected at most 24, the positions of this model, found 25" in message


def test_a_gpu_backend_without_a_gpu(
    dragoman: Dragoman, checkpoint: Path, bundle: Path, tmp_path: Path
) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    neutral = tmp_path / "neutral"
    assert dragoman("export", checkpoint, "-o", neutral).returncode == 0
    message = error_of(dragoman("run", bundle, "--backend", "onnxruntime-cuda"))
    assert "its graphs are for target cpu" in message and "expected target neutral" in message
    for command in ("run", "bench"):
        message = error_of(dragoman(command, neutral, "--backend", "onnxruntime-cuda"))
        assert "has no CUDAExecutionProvider" in message and "dragoman[cuda]" in message


@pytest.mark.parametrize(
    "command",
    [["run"], ["run-file", "s", "-o", "o"], ["encode"], ["score"], ["verify"], ["bench"]],
    ids=lambda command: command[0],
)
def test_commands_that_run_a_bundle_take_a_device(dragoman: Dragoman, command: list[str]) -> None:
    """Its name is checked before the bundle is read."""
    name, *arguments = command
    message = error_of(dragoman(name, "b", *arguments, "--device", "gpu1"))
    assert message == (
        "Error: --device: expected cpu, cuda or cuda:N, such as cuda:1, found 'gpu1'"
    )


def test_a_device_that_does_not_run_the_bundle(dragoman: Dragoman, bundle: Path) -> None:
    for command in ("run", "score", "verify", "bench"):
        message = error_of(dragoman(command, bundle, "--device", "cuda:1"))
        assert "its graphs are for target cpu" in message and "expected target neutral" in message
        options = ["--backend", "onnxruntime", "--device", "cuda:1"]
        message = error_of(dragoman(command, bundle, *options))
        assert "device: expected cpu for the backend onnxruntime, found cuda:1" in message
    assert dragoman("run", bundle, "a", "--device", "cpu").returncode == 0


def test_verbose_shows_where_it_happened(dragoman: Dragoman, tmp_path: Path) -> None:
    outcome = dragoman("-v", "inspect", tmp_path / "missing")
    assert outcome.returncode == 2
    assert "Traceback" in outcome.stderr and "BundleError" in outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith("Error: ")


def test_verbose_ends_with_its_command(dragoman: Dragoman, tmp_path: Path) -> None:
    """Whoever calls the command in a process gets the log messages of that call only."""
    logger = logging.getLogger("dragoman")
    before = ([*logger.handlers], logger.level)
    dragoman("-v", "inspect", tmp_path / "missing")
    assert (logger.handlers, logger.level) == before
