"""The trial from the command line: a line for each case, then counts by kind and precision.

python -m tests.mutants.table [--only PART] [--precision int8] [--zoo DIRECTORY] [--write FILE]
python -m tests.mutants.table --loading [--only PART] [--precision int8] [--zoo DIRECTORY]

With `--loading`, faults are injected into bundles with known answers, which are loaded instead of
verified. With `--write`, what stands between the marks of a page is replaced, as in
docs/guides/proof.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from .faults import CASES
from .faults.fault import Case
from .known_misses import KNOWN_MISSES
from .trial import Judgement, judge, judge_loading, problem_of
from .zoo import BUNDLES, BundleName, Zoo

OUTCOMES = ("caught", "missed", "no effect")
PRECISIONS = ("fp32", "fp16", "int8", "int4")
GOALS = {"fp32": 0.98, "fp16": 0.95, "int8": 0.95, "int4": 0.90}
"""The least share of faults that can change an output which `verify` catches."""
BEFORE = {"fp32": (132, 59, 3), "fp16": (17, 14, 0), "int8": (67, 55, 0), "int4": (26, 56, 0)}
"""Faults caught, missed and without an effect when `verify` compared outputs on its inputs only."""

Judgements = Mapping[Case, Judgement]


def counts(judgements: Judgements) -> dict[str, Counter[str]]:
    """How many cases of each precision were caught, missed or had no effect."""
    found: dict[str, Counter[str]] = {precision: Counter() for precision in PRECISIONS}
    for case, judgement in judgements.items():
        found[case.bundle.precision][judgement.outcome] += 1
    return found


def share(counted: Counter[str]) -> float:
    """The share caught of the faults that have an effect; 1 if there are none."""
    effective = counted["caught"] + counted["missed"]
    return counted["caught"] / effective if effective else 1.0


def table(judgements: Judgements) -> str:
    """Counts by kind, place and precision in Markdown: caught / missed / no effect."""
    rows = ["| caught / missed / no effect | " + " | ".join(PRECISIONS) + " |"]
    rows.append("| --- |" + " --- |" * len(PRECISIONS))
    for group in ("kind", "place"):
        names = dict.fromkeys(str(getattr(case.fault, group)) for case in judgements)
        for name in names if len(names) > 1 else ():
            chosen = {c: j for c, j in judgements.items() if getattr(c.fault, group) == name}
            label = name if group == "kind" else f"injected into the {name}"
            rows.append(_row(label, counts(chosen)))
    total = counts(judgements)
    rows.append(_row("**all**", total))
    shares = (f"{share(total[precision]):.1%}" for precision in PRECISIONS)
    rows.append("| **caught of those with an effect** | " + " | ".join(shares) + " |")
    goals = (f"{GOALS[precision]:.0%}" for precision in PRECISIONS)
    rows.append("| goal | " + " | ".join(goals) + " |")
    return "\n".join(rows) + "\n"


def loading(judgements: Judgements) -> str:
    """The shares of faults of bundles that `load` refuses by their known answers."""
    counted = counts(judgements)
    rows = ["| | " + " | ".join(PRECISIONS) + " |", "| --- |" + " --- |" * len(PRECISIONS)]
    rows.append(_row("refused / loaded / without an effect", counted))
    shares = (f"{share(counted[p]):.1%}" if counted[p].total() else "not run" for p in PRECISIONS)
    rows.append("| **refused of those with an effect** | " + " | ".join(shares) + " |")
    return "\n".join(rows) + "\n"


def _row(name: str, counted: Mapping[str, Counter[str]]) -> str:
    cells = []
    for precision in PRECISIONS:
        c = counted[precision]
        figures = f"{c['caught']} / {c['missed']} / {c['no effect']}"
        cells.append(figures if c.total() else "")
    return f"| {name} | " + " | ".join(cells) + " |"


def summary(judgements: Judgements) -> str:
    """The shares of faults caught before and after `verify` compared more than outputs."""
    after = counts(judgements)
    before = {p: Counter(dict(zip(OUTCOMES, BEFORE[p], strict=True))) for p in PRECISIONS}
    rows = ["| | " + " | ".join(PRECISIONS) + " |", "| --- |" + " --- |" * len(PRECISIONS)]
    for name, counted in (("before", before), ("now", after)):
        cells = [
            f"{share(counted[p]):.1%} ({counted[p]['caught']} of "
            f"{counted[p]['caught'] + counted[p]['missed']})"
            for p in PRECISIONS
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    goals = (f"{GOALS[precision]:.0%}" for precision in PRECISIONS)
    rows.append("| goal | " + " | ".join(goals) + " |")
    return "\n".join(rows) + "\n"


def misses(judgements: Judgements) -> str:
    """The faults that nothing catches, with the reasons."""
    rows = ["| fault | bundle | why |", "| --- | --- | --- |"]
    for case, judgement in judgements.items():
        if judgement.outcome == "missed":
            why = KNOWN_MISSES.get(case.name, "not known yet")
            rows.append(f"| {case.fault.name} | {case.bundle} | {why} |")
    return "\n".join(rows) + "\n"


def write_page(file: Path, judgements: Judgements) -> None:
    """Put the tables between their marks in a page."""
    page = file.read_text(encoding="utf-8")
    for make in (summary, table, misses):
        begin, end = f"<!-- {make.__name__} -->", f"<!-- end of {make.__name__} -->"
        before, rest = page.split(begin)
        after = rest.split(end)[1]
        page = f"{before}{begin}\n\n{make(judgements)}\n{end}{after}"
    file.write_text(page, encoding="utf-8")


def chosen_cases(only: Iterable[str], precision: str | None) -> list[Case]:
    """The cases whose names, kinds or places contain one of the parts, in a precision."""
    parts = list(only)

    def matches(case: Case) -> bool:
        text = f"{case.name} ({case.fault.kind}, {case.fault.place})"
        return not parts or any(part in text for part in parts)

    return [case for case in CASES if matches(case) and precision in (None, case.bundle.precision)]


def _problem_of_right(name: BundleName, zoo: Zoo) -> str | None:
    """What `verify` finds wrong with a right bundle, or how it breaks down."""
    try:
        return problem_of(zoo.bundle(name), name, zoo)
    except Exception as error:  # the other bundles are still of use
        return f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the trial; the status is 1 if a right bundle is refused or a goal is not reached."""
    parser = argparse.ArgumentParser(description="Inject faults and count those that are caught.")
    parser.add_argument("--only", action="append", default=[], help="part of a case's name or kind")
    parser.add_argument("--precision", choices=PRECISIONS)
    parser.add_argument("--zoo", type=Path, help="where right bundles are kept between runs")
    parser.add_argument("--right", action="store_true", help="only verify the right bundles")
    parser.add_argument("--loading", action="store_true", help="load with known answers instead")
    parser.add_argument("--missed", action="store_true", help="print only what was not caught")
    parser.add_argument("--write", type=Path, help="the page to put the table into")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        zoo = Zoo(options.zoo or Path(temporary))
        stack.enter_context(zoo.exporting_once())
        refused, trial = 0, judge_loading if options.loading else judge
        for name in () if options.loading else BUNDLES:
            if options.precision in (None, name.precision) and (options.right or not options.only):
                problem = _problem_of_right(name, zoo)
                refused += problem is not None
                if problem is not None or not options.missed:
                    print(f"right      {name}: {problem or 'passes'}", flush=True)
        judgements: dict[Case, Judgement] = {}
        for case in [] if options.right else chosen_cases(options.only, options.precision):
            if options.loading and case.fault.place != "bundle":
                continue
            try:
                found = judgements[case] = trial(case, zoo)
            except Exception as error:  # the other cases are still of use
                refused += 1
                print(f"broken     {case.name}: {type(error).__name__}: {error}"[:300], flush=True)
                continue
            if found.outcome != "caught" or not options.missed:
                line = f"{found.outcome:<10} {case.name} [{case.fault.kind}] {found.seconds:.1f} s"
                print(f"{line} {found.problem[:110]}".rstrip(), flush=True)
    if options.loading:
        print(loading(judgements))
        return int(refused > 0)
    if judgements:
        print(table(judgements))
        if options.write:
            write_page(options.write, judgements)
    reached = all(share(counted) >= GOALS[p] for p, counted in counts(judgements).items())
    return 0 if reached and not refused else 1


if __name__ == "__main__":
    sys.exit(main())
