"""A small checkpoint, the bundle that `dragoman build` makes of it, and two ways to run commands:
in this process, and as a separate process where exit, pipes, signals or imports matter."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.reference_model import Transformer, save_checkpoint
from dragoman.reference_model.recipes import Example, write_examples
from dragoman.runtime import Bundle, Model, load, read_bundle

from ..zoo import letters_model, letters_tokenizers

Outcome = CompletedProcess[str]

WORDS = ["dragoman", "transformer", "a", "encoder", "decoder", "attention", "is", "all", "you"]
ENVIRONMENT = {"COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
CACHE_PRELUDE = f"""
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from dragoman.export import neutral_bundle
from tests.export_cache import cached_export
neutral_bundle.export_graph = cached_export(neutral_bundle.export_graph)
"""


@pytest.fixture(scope="session")
def spawn() -> Callable[..., Outcome]:
    """Run `python -m dragoman` to its end, with the cache of graphs. `prelude` is Python that
    the process runs first; `stdout` is a file to write to instead of what is returned."""

    def run(
        *arguments: object, stdin: bytes = b"", prelude: str = "", stdout: Path | None = None
    ) -> Outcome:
        words = [str(argument) for argument in arguments]
        command = [sys.executable, "-m", "dragoman", *words]
        if words[0] in {"build", "export"}:
            prelude = CACHE_PRELUDE + prelude
        if prelude:
            start = "import runpy; runpy.run_module('dragoman', run_name='__main__')"
            code = f"import sys; sys.argv = {['dragoman', *words]!r}\n{prelude}\n{start}"
            command = [sys.executable, "-c", code]
        environment = os.environ | ENVIRONMENT
        if stdout is not None:
            with stdout.open("wb") as file:
                done = subprocess.run(
                    command, input=stdin, stdout=file, stderr=subprocess.PIPE, env=environment
                )
        else:
            done = subprocess.run(command, input=stdin, capture_output=True, env=environment)
        return Outcome(
            words, done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode()
        )

    return run


def status_of(words: list[str]) -> int:
    """Run the command line in this process, and return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dragoman", *words])
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as caught:
            main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture(scope="session")
def build_here() -> Callable[..., Outcome]:
    """Run commands that make bundles for many tests, in this process: exports are cached here."""

    def run(*arguments: object) -> Outcome:
        words = [str(argument) for argument in arguments]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = status_of(words)
        return Outcome(words, status, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def dragoman(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run the command line in this process, with torch imported already."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        words = [str(argument) for argument in arguments]
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        capfd.readouterr()
        with monkeypatch.context() as patch, source.open(encoding="utf-8") as file:
            patch.setattr(sys, "stdin", file)
            status = status_of(words)
        out, err = capfd.readouterr()
        source.unlink()
        return Outcome(words, status, out, err)

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tokenizers, held-out words and a recipe, as `dragoman train` leaves one."""
    directory = tmp_path_factory.mktemp("checkpoints") / "small"
    save_checkpoint(letters_model(), directory)
    letters_tokenizers(directory)
    write_examples([Example(word, ("D R", "AE G")) for word in WORDS], directory / "held_out.tsv")
    (directory / "recipe.json").write_text('{"recipe": "g2p-en"}', encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def token_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configuration and weights only."""
    directory = tmp_path_factory.mktemp("checkpoints") / "tokens"
    save_checkpoint(letters_model(), directory)
    return directory


@pytest.fixture(scope="session")
def build_outcome(
    build_here: Callable[..., Outcome], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Outcome]:
    """The bundle and the outcome of `dragoman build`, once for all tests."""
    directory = tmp_path_factory.mktemp("bundles") / "small"
    return directory, build_here("build", checkpoint, "-o", directory, "--threads", 1)


@pytest.fixture(scope="session")
def bundle(build_outcome: tuple[Path, Outcome]) -> Path:
    """Not to be changed: see `bundle_copy`."""
    directory, outcome = build_outcome
    assert outcome.returncode == 0, outcome.stderr
    return directory


@pytest.fixture(scope="session")
def model(bundle: Path) -> Model:
    """What the command line is compared with."""
    return load(bundle, threads=1)


@pytest.fixture
def run(dragoman: Callable[..., Outcome], bundle: Path) -> Callable[..., Outcome]:
    """`dragoman run` with the bundle."""

    def run(*arguments: object, stdin: bytes = b"") -> Outcome:
        return dragoman("run", bundle, "--threads", 1, *arguments, stdin=stdin)

    return run


@pytest.fixture
def bundle_copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def publish(directory: Path, **settings: Any) -> None:
    """Let a bundle be one of a model that was published with these generation settings."""
    import dataclasses

    from dragoman.runtime.format.writing import write_manifest

    manifest = read_bundle(directory).manifest
    generation = dataclasses.replace(manifest.generation, **settings)
    write_manifest(dataclasses.replace(manifest, generation=generation), directory)


@pytest.fixture(scope="session")
def token_bundle(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graphs without tokenizers: token ids in and out."""
    import dataclasses

    from dragoman.runtime.format.writing import write_manifest

    from ..bundle_files import record_files

    directory = tmp_path_factory.mktemp("bundles") / "tokens"
    shutil.copytree(bundle, directory, ignore=shutil.ignore_patterns("*tokenizer*", "manifest*"))
    manifest = read_bundle(bundle).manifest
    write_manifest(
        dataclasses.replace(manifest, tokenizers=None, files=record_files(directory), parity=None),
        directory,
    )
    return directory


@pytest.fixture
def copied_export(
    monkeypatch: pytest.MonkeyPatch, build_outcome: tuple[Path, Outcome]
) -> Iterator[None]:
    """Exporting and optimizing copy existing bundles, for tests of the steps around them."""
    import dataclasses

    made, _ = build_outcome

    def copy(model: Transformer, directory: Path, **options: object) -> Bundle:
        shutil.copytree(made, directory, dirs_exist_ok=True)
        return Bundle(directory, dataclasses.replace(read_bundle(made).manifest, parity=None))

    def optimized(bundle: Bundle, directory: Path, **options: object) -> Bundle:
        return copy(letters_model(), directory)

    monkeypatch.setattr("dragoman.api.steps.export_bundle", copy)
    monkeypatch.setattr("dragoman.optimize.target_bundle.optimize_bundle", optimized)
    monkeypatch.setattr("dragoman.export.neutral_bundle.export_bundle", copy)
    yield
