"""Injects faults into bundles and tests that parity catches all but the known misses.

Each case has one expected outcome. So the shares that are caught follow from the lists of known
misses and of faults without an effect, and each case can be judged by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.runtime import load

from .faults import CASES
from .faults.fault import Case
from .known_misses import KNOWN_MISSES, WITHOUT_EFFECT
from .table import GOALS, share
from .trial import Outcome, judge, judge_loading, problem_of
from .zoo import BUNDLES, BundleName, Zoo

SMALLEST = (
    "gpt2 cpu fp32",
    "gpt2 cpu int8",
    "gpt2 cpu int4",
    "bart cpu fp32",
    "bert-embedding cpu int8",
    "bert-classifier cpu fp32",
    "ssru cpu fp32",
)
"""The bundles in the default test run: small models, each verified in about a second."""
ALONE_IN_THEIR_CHECK = (
    "padding of a row is a candidate / ssru cpu fp32",
    "choices of a shortlist count other rows' tokens / ssru cpu fp32",
    "the scale of one gathered token is 2 % off / ssru cpu int4",
    "sources that join have the first one's list / ssru cpu fp32",
)
"""Faults that only one part of a check finds."""


def expected(case: Case) -> Outcome:
    """The expected outcome of a case, according to the lists."""
    if case.name in WITHOUT_EFFECT:
        return "no effect"
    return "missed" if case.name in KNOWN_MISSES else "caught"


def a_case_of_each_kind() -> list[Case]:
    """A case of each place and kind that is caught, on the smallest bundles, in one precision after
    the other; and one of the exporter, which is slow."""
    found: dict[tuple[str, str], dict[str, Case]] = {}
    for case in CASES:
        of_exporter = case.fault.place == "exporter"
        small = ("bert-classifier cpu fp32",) if of_exporter else SMALLEST
        if str(case.bundle) in small and expected(case) == "caught":
            kind = "" if of_exporter else case.fault.kind
            cases = found.setdefault((case.fault.place, kind), {})
            cases.setdefault(case.bundle.precision, case)
    return [list(cases.values())[turn % len(cases)] for turn, cases in enumerate(found.values())]


@pytest.fixture(scope="module")
def zoo(shared_folder: Path) -> Iterator[Zoo]:
    """The right bundles, which are made on first use."""
    directory = shared_folder / "zoo"
    directory.mkdir(exist_ok=True)
    yield Zoo(directory)


def check(case: Case, zoo: Zoo) -> None:
    found = judge(case, zoo)
    assert found.outcome == expected(case), found.problem or (
        "verify passes: catch the fault, or add it to KNOWN_MISSES with the reason"
    )


@pytest.mark.parametrize("case", a_case_of_each_kind(), ids=lambda case: case.name)
def test_a_fault_of_each_kind_is_caught(case: Case, zoo: Zoo) -> None:
    check(case, zoo)


@pytest.mark.parametrize("name", ALONE_IN_THEIR_CHECK)
def test_a_fault_that_few_checks_can_see_is_caught(name: str, zoo: Zoo) -> None:
    check(next(case for case in CASES if case.name == name), zoo)


@pytest.mark.parametrize("name", [b for b in BUNDLES if str(b) in SMALLEST], ids=str)
def test_small_right_bundles_pass(name: BundleName, zoo: Zoo) -> None:
    assert problem_of(zoo.bundle(name), name, zoo) is None


@pytest.mark.mutants
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_fault_has_the_expected_outcome(case: Case, zoo: Zoo) -> None:
    check(case, zoo)


@pytest.mark.mutants
@pytest.mark.parametrize("name", BUNDLES, ids=str)
def test_every_right_bundle_passes(name: BundleName, zoo: Zoo) -> None:
    assert problem_of(zoo.bundle(name), name, zoo) is None


@pytest.mark.parametrize(
    "name",
    [
        "attention is 5 % too sharp in one layer of the decoder / bart cpu fp32",
        "the gains of two norms are swapped / bert-embedding cpu int8",
    ],
)
def test_known_answers_refuse_a_fault_on_loading(name: str, zoo: Zoo) -> None:
    case = next(case for case in CASES if case.name == name)
    load(zoo.answering(case.bundle), threads=1, check="always").close()
    found = judge_loading(case, zoo)
    assert found.outcome == "caught"
    assert "than those proven at build" in found.problem


@pytest.mark.mutants
@pytest.mark.parametrize("name", BUNDLES, ids=str)
def test_every_right_bundle_loads_with_its_known_answers(name: BundleName, zoo: Zoo) -> None:
    load(zoo.answering(name), threads=1, check="always").close()


@pytest.mark.parametrize("precision", GOALS)
def test_the_goals_are_reached(precision: str) -> None:
    outcomes: Counter[str] = Counter(
        expected(case) for case in CASES if case.bundle.precision == precision
    )
    assert share(outcomes) >= GOALS[precision], outcomes


@pytest.mark.parametrize("group", ["kind", "place"])
def test_faults_of_every_kind_are_caught(group: str) -> None:
    outcomes: dict[tuple[str, str], set[Outcome]] = {}
    for case in CASES:
        row = str(getattr(case.fault, group)), case.bundle.precision
        outcomes.setdefault(row, set()).add(expected(case))
    assert not [row for row, found in outcomes.items() if "caught" not in found]


def test_the_lists_name_cases_once() -> None:
    names = Counter(case.name for case in CASES)
    assert not [name for name, count in names.items() if count > 1]
    assert not {*KNOWN_MISSES, *WITHOUT_EFFECT} - names.keys()
    assert not KNOWN_MISSES.keys() & WITHOUT_EFFECT
    assert all(KNOWN_MISSES.values())
