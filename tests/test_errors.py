"""Errors and warnings pass through pickle and copy whole, as process pools and queues send them."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import DragomanError
from dragoman.api.build import BuiltBundle, ParityFailedError
from dragoman.api.distill import DistillationFailedError
from dragoman.distillation.judging import Judged
from dragoman.export.exporter import ContractError
from dragoman.files.regular_files import FileError
from dragoman.reference_model.settings import CheckpointError, ConfigError
from dragoman.reference_model.training import TrainingStoppedError
from dragoman.runtime import (
    BundleError,
    CancelError,
    ClosedModelError,
    DeadlineError,
    Result,
    Segment,
    StoppedError,
    UnfinishedError,
    read_bundle,
)
from dragoman.runtime.format.parity import Divergence, Parity, TokenParity
from dragoman.runtime.serving.engine.request_queue import OverloadedError

STORED = Path(__file__).parent / "runtime" / "format" / "stored_bundle" / "bundle"
PROBLEMS = ["a file is missing", "another is too long"]


def parity_failed() -> ParityFailedError:
    bundle = read_bundle(STORED)
    differing = (Divergence(3, 1, 5, 6, 0.25),)
    parity = Parity(False, "oracle", "inputs", "cpu", (), TokenParity(2, 1, differing, False))
    built = BuiltBundle(bundle, parity, ("a warning",))
    return ParityFailedError("tokens differ", parity, bundle.manifest.passes, built)


RESULT = Result("ab", (3, 4), -0.5, "end", segments=(Segment(0.0, 1.5, "ab", (3, 4)),))
MADE: dict[type[DragomanError], Callable[[], DragomanError]] = {
    BundleError: lambda: BundleError("bundles/x", PROBLEMS),
    CancelError: lambda: CancelError("the call was cancelled", {1: RESULT}),
    CheckpointError: lambda: CheckpointError(Path("x.safetensors"), PROBLEMS),
    ClosedModelError: ClosedModelError,
    ConfigError: lambda: ConfigError(PROBLEMS),
    ContractError: lambda: ContractError("encoder", PROBLEMS),
    DeadlineError: lambda: DeadlineError("the call was not done within 1 s", {1: RESULT}),
    FileError: lambda: FileError(Path("x.json"), "expected a file, found none"),
    OverloadedError: lambda: OverloadedError("256 requests wait", 2.6),
    DistillationFailedError: lambda: DistillationFailedError(
        "a loss", [Judged("a", {"BLEU": 1.5})]
    ),
    ParityFailedError: parity_failed,
    StoppedError: lambda: StoppedError("no request needs this batch", {1: RESULT}),
    TrainingStoppedError: lambda: TrainingStoppedError(15, Path("training"), 7),
    UnfinishedError: lambda: UnfinishedError("the device is lost", {1: RESULT}),
}
"""How the code makes errors whose constructors take other arguments than `DragomanError`'s."""


def defined() -> Iterator[type[Exception]]:
    """Errors and warnings of the package; ruff's N818 holds their names."""
    package = Path(dragoman.__file__).parent
    for file in sorted(file for part in package.iterdir() for file in part.rglob("*.py")):
        names = [
            node.name
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Warning"))
        ]
        if names:
            parts = file.relative_to(package).with_suffix("").parts
            module = import_module(".".join(["dragoman", *(p for p in parts if p != "__init__")]))
            found = (getattr(module, name) for name in names)
            yield from (c for c in found if issubclass(c, DragomanError | Warning))


CLASSES: list[type[Exception]] = [DragomanError, *dict.fromkeys(defined())]


def made(of: type[Exception]) -> Exception:
    if not issubclass(of, DragomanError):
        return of("cut")
    if of.__init__ is not DragomanError.__init__ or of in MADE:
        return next(make for known, make in MADE.items() if issubclass(of, known))()
    return of("expected text, found none", PROBLEMS)


def contents(error: BaseException) -> dict[str, Any]:
    fields = {name: getattr(error, name, None) for name in ("status", "code", "problems")}
    headers = dict(getattr(error, "headers", {}))
    return {"class": type(error), "text": str(error), "args": error.args, "headers": headers} | (
        fields | vars(error)
    )


def test_all_classes_are_found() -> None:
    def below(base: type[Exception]) -> Iterator[type[Exception]]:
        for each in base.__subclasses__():
            yield from (each, *below(each))

    known = [each for each in below(DragomanError) if each.__module__.startswith("dragoman.")]
    assert len(CLASSES) > 30
    assert set(known) <= set(CLASSES)


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_errors_and_warnings_are_pickled_and_copied_whole(of: type[Exception]) -> None:
    error = made(of)
    error.add_note("in chapter 3")
    expected = contents(error)
    assert expected["text"]
    copies = [copy.copy(error), copy.deepcopy(error)]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copies.append(pickle.loads(pickle.dumps(error, protocol)))  # noqa: S301
    for found in copies:
        assert found is not error
        assert contents(found) == expected


def raised(name: str) -> None:
    raise next(made(of) for of in CLASSES if of.__name__ == name)


def doubled(number: int) -> int:
    return 2 * number


def test_a_process_pool_survives_every_error() -> None:
    """An error that cannot be read breaks the pool for all later calls."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        for of in MADE:
            with pytest.raises(of) as caught:
                pool.submit(raised, of.__name__).result()
            assert contents(caught.value)["text"] == str(made(of))
            assert pool.submit(doubled, 21).result() == 42
