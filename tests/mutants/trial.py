"""Judges right bundles and faults, as the tests and the command do."""

from __future__ import annotations

import copy
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest

from dragoman import api
from dragoman.api import steps
from dragoman.errors import DragomanError
from dragoman.export import neutral_bundle
from dragoman.export.exporter import export_graph
from dragoman.optimize.graph_pass import PassError
from dragoman.runtime import BackendError, load
from dragoman.runtime.format.bundle import read_bundle, read_known_answers
from dragoman.runtime.format.writing import add_known_answers, write_manifest

from .checkpoints import TEXTS
from .editing import EditedBundle
from .equivalence import same_behaviour
from .faults.fault import BundleFault, Case, ExporterFault, PassFault, RuntimeFault
from .zoo import BundleName, Zoo

Outcome = Literal["caught", "missed", "no effect"]


@dataclass(frozen=True)
class Judgement:
    """The outcome of injecting a fault.

    Attributes:
        outcome: "no effect" is computed: the faulty bundle behaves as the right one does
        problem: the problem that was reported; empty if there was none
        seconds: the time to verify, or to build if the fault is in a pass or the exporter
    """

    outcome: Outcome
    problem: str
    seconds: float


def problem_of(bundle: Path, name: BundleName, zoo: Zoo) -> str | None:
    """What `verify` finds wrong with a bundle; None: it passes."""
    try:
        verification = api.verify(
            bundle, zoo.checkpoint(name.model), record=False, threads=1, limit=name.limit
        )
    except BackendError as error:
        raise ValueError(f"the faulty bundle does not run, which anybody sees: {error}") from error
    except DragomanError as error:
        return str(error)
    return None if verification.passed else verification.problem or "failed without a problem"


def judge(case: Case, zoo: Zoo) -> Judgement:
    """Inject a fault, and verify or build the result."""
    with TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faulty, right = Path(temporary) / "faulty", zoo.bundle(case.bundle)
        if isinstance(case.fault, BundleFault):
            faulty.mkdir()
            edited = EditedBundle(read_bundle(right))
            case.fault.inject(edited)
            edited.write(faulty)
        begun = time.monotonic()
        if isinstance(case.fault, BundleFault):
            problem = problem_of(faulty, case.bundle, zoo)
        elif isinstance(case.fault, RuntimeFault):
            with pytest.MonkeyPatch.context() as patch:
                case.fault.patch(patch)
                problem = problem_of(right, case.bundle, zoo)
        else:
            calibration = _calibration(Path(temporary)) if case.fault.calibrated else None
            problem = _problem_of_build(case.fault, case.bundle, faulty, calibration, zoo)
            if problem is None and calibration is not None:
                right = zoo.calibrated(case.bundle, calibration, Path(temporary) / "right")
        seconds = time.monotonic() - begun
        if problem is not None:
            return Judgement("caught", problem, seconds)
        if isinstance(case.fault, RuntimeFault):
            return Judgement("missed", "", seconds)
        same = same_behaviour(read_bundle(right), faulty)
        return Judgement("no effect" if same else "missed", "", seconds)


def judge_loading(case: Case, zoo: Zoo) -> Judgement:
    """Inject a fault into a bundle with the known answers of the right one, and load it."""
    assert isinstance(case.fault, BundleFault)
    right = zoo.answering(case.bundle)
    with TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faulty, problem = Path(temporary), ""
        bundle = read_bundle(right)
        edited = EditedBundle(bundle)
        case.fault.inject(edited)
        manifest, known = edited.write(faulty).manifest, read_known_answers(bundle)
        assert known is not None
        write_manifest(add_known_answers(known, manifest, faulty), faulty)
        begun = time.monotonic()
        try:
            load(faulty, threads=1, check="always").close()
        except DragomanError as error:
            problem = str(error)
        seconds = time.monotonic() - begun
        if problem:
            return Judgement("caught", problem, seconds)
        same = same_behaviour(read_bundle(right), faulty)
        return Judgement("no effect" if same else "missed", "", seconds)


def _problem_of_build(
    fault: PassFault | ExporterFault,
    name: BundleName,
    output: Path,
    calibration: Path | None,
    zoo: Zoo,
) -> str | None:
    """What `build` finds wrong while there is a fault; None: it passes."""
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(fault, PassFault):
            fault.patch(patch)
        else:
            _export_changed(fault, patch)
        try:
            api.build(
                zoo.checkpoint(name.model),
                output,
                target=name.target,
                precision=name.precision,
                calibration=calibration,
                limit=name.limit,
                threads=1,
                shortlist=zoo.shortlist(name.model),
            )
        except (api.ParityFailedError, PassError) as error:
            return str(error)
    return None


def _export_changed(fault: ExporterFault, patch: pytest.MonkeyPatch) -> None:
    """Let the exporter get a changed copy of the model, while the oracle stays as it is.

    Exports of right models that are kept for reuse are not used: what changed may not show in a
    model's weights and configuration.
    """
    right = neutral_bundle.export_bundle

    def export_changed(model: Any, *given: Any, **named: Any) -> Any:
        changed = copy.deepcopy(model)
        fault.change(changed)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(neutral_bundle, "export_graph", export_graph)
            return right(changed, *given, **named)

    patch.setattr(steps, "export_bundle", export_changed)


def _calibration(directory: Path) -> Path:
    """A file of words that models of words and of sentences can read."""
    words = sorted(
        {word for text in TEXTS for word in text.split() if word.isalpha() and word.isascii()}
    )
    file = directory / "calibration.txt"
    file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return file
