"""The command `dragoman doctor`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from dragoman.api.doctor import RUNTIMES, Examination, examine
from dragoman.files.text_lines import printable
from dragoman.tested_versions import Package

HEADINGS = ("package", "installed", "required", "tested with")


@click.command()
@click.argument("bundle", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def doctor(bundle: tuple[Path, ...], as_json: bool) -> int:
    """Show versions and the machine, and what is wrong with them, for a report of a bug.

    The exit status is 1 if something is wrong. With BUNDLEs, their files and their known answers
    are checked, too.

    \b
    dragoman doctor
    dragoman doctor bundles/g2p-en --json
    """
    found = examine(bundle)
    if as_json:
        values = dataclasses.asdict(found) | {"healthy": found.healthy}
        click.echo(json.dumps(values, indent=1))
    else:
        click.echo("\n".join(map(printable, _page(found))))
    return 0 if found.healthy else 1


def _page(found: Examination) -> Iterator[str]:
    for section, facts in groupby(found.facts, key=lambda fact: fact.section):
        yield f"### {section}"
        yield from (f"- {fact.name}: {fact.value}" for fact in facts)
        if section == "Versions":
            yield from _packages([package for package in found.packages if package.installed])
        yield ""
    notes = [finding for finding in found.findings if finding.kind == "note"]
    if notes:
        yield "### Notes"
        yield from (f"- {note.problem}{note.mend and f': {note.mend}'}" for note in notes)
        yield ""
    yield "### What is wrong"
    for finding in found.findings:
        if finding.kind == "error":
            yield f"- {finding.problem}"
            if finding.mend:
                yield f"  mend: {finding.mend}"
    if found.healthy:
        yield "Nothing."


def _packages(installed: Sequence[Package]) -> Iterator[str]:
    if not installed:
        return
    shown = {"numpy", "tokenizers", *RUNTIMES}
    usual = [package for package in installed if package.as_tested and package.name not in shown]
    listed = (f"{package.name} {package.installed} ({package.versions})" for package in usual)
    yield f"- as tested: {', '.join(listed) or 'none'}"
    yield ""
    yield from _table([package for package in installed if package not in usual])


def _table(packages: Sequence[Package]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        HEADINGS,
        *((p.name, p.installed or "", p.versions, p.tested) for p in packages),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
