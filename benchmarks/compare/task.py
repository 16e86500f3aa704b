"""A task: a kind of work at which contenders are compared, and the command that measures it.

Contenders do not import this module: their environments may lack click and rich.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..processes import HERE, Interpreter
from . import options
from . import record as records
from .record import Record, Table
from .rounds import Contender, Outcome, Results, Work, take_turns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnyContender = TypeVar("AnyContender", bound=Contender[Any, Any])

Options = SimpleNamespace


@dataclass(frozen=True)
class Run:
    """The common settings of every task."""

    directory: Path
    progress: Callable[[str], None] = lambda stage: None
    only: Sequence[str] = ()
    openvino: Interpreter = HERE
    """Interpreter with Optimum-Intel and OpenVINO's tools."""
    before: Interpreter | None = None
    """Interpreter with another version of Dragoman, to compare with."""

    @property
    def checkpoint(self) -> Path:
        """The path of the checkpoint, if the task writes one."""
        return self.directory / "checkpoint"

    def chosen(self, contenders: Iterable[AnyContender]) -> list[AnyContender]:
        """Return the selected contenders, and the required ones, which are not timed otherwise."""
        everyone = list(contenders)
        timed = [contender.name for contender in everyone if contender.timed]
        texts = [text.lower() for text in self.only or [""]]
        names = [name for name in timed if any(text in name.lower() for text in texts)]
        if not names:
            raise DragomanError(
                f"--only: expected part of a contender's name, found {', '.join(self.only)}; the "
                f"contenders are {', '.join(timed)}"
            )
        return [
            contender if contender.name in names else replace(contender, timed=False)
            for contender in everyone
            if contender.name in names or contender.required
        ]

    def take_turns(
        self,
        contenders: Iterable[Contender[Work, Outcome]],
        items: Mapping[str, Work],
        **options: Any,
    ) -> Results[Outcome]:
        """Run contenders on work items, see `rounds.take_turns`."""
        common = {"checkpoint": self.checkpoint, "directory": self.directory}
        return take_turns(contenders, items, progress=self.progress, **common | options)


@dataclass(frozen=True)
class Task:
    """The definition of a comparison."""

    name: str
    help: str
    options: Sequence[click.Parameter]
    """Options and arguments of the command; `ONLY`, `OPENVINO` and `BEFORE` are in the run."""
    measure: Callable[[Run, Options], Mapping[str, Any]]
    """Measures contenders, given the options by name, and returns the figures of the record,
    including `failures`, and the `gpu` if one is measured."""
    rows: str
    """Key of the figures that must not be empty."""
    file: Callable[[Record, Mapping[str, Any]], str]
    """Returns the stem of the output files from the record and the options."""
    tables: Callable[[Record], Iterable[Table]]
    notes: Callable[[Record], Iterable[str]] = lambda record: ()
    """Return the printed tables, and the lines below them."""
    documentation: Callable[[Record], Iterable[Table]] | None = None
    """Returns the tables of the documentation, if they differ."""
    picture: Callable[[Record], Figure] | None = None
    """Draws a record, in a file of the type `picture_type`."""
    picture_type: str = "svg"
    copy: Callable[[Record, Path, Mapping[str, Any]], None] | None = None
    """Writes further files from (record, stem of the record's file, options)."""
    problems: Callable[[Record], Sequence[str]] = lambda record: ()
    """Returns failed checks of a record, which fail the command after it is written."""

    def command(self) -> click.Command:
        """Return the command that measures, prints and writes the record and the picture."""
        what = "the figures, as JSON" + (" and as a picture" if self.picture else "")
        output = options.option("--output", f"Folder to write {what} to.", kind=Path)
        parameters = [*self.options, output]
        return click.Command(self.name, help=self.help, params=parameters, callback=self._run)

    def _run(self, output: Path | None, **options: Any) -> None:
        record = self._measured(**options)
        self.show(record)
        if not record[self.rows]:
            reasons = [f"{f['contender']}: {f['reason']}" for f in record.get("failures", ())]
            raise click.ClickException(
                "; ".join(["expected at least one contender that works, found none", *reasons])
            )
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            stem = output / self.file(record, options)
            records.write_json(record, stem.with_name(f"{stem.name}.json"))
            if self.picture is not None:
                from .picture_style import write

                path = stem.with_name(f"{stem.name}.{self.picture_type}")
                write(self.picture(record), path, dpi=150)
            if self.copy is not None:
                self.copy(record, stem, options)
        if problems := self.problems(record):
            raise click.ClickException("; ".join(problems))

    def show(self, record: Record) -> None:
        """Print the tables of a record, notes, circumstances and failures."""
        where = f"{record['machine']}; load average before: {record['load_average']:.2f}"
        lines = [*self.notes(record), where, record["command"], *records.failure_notes(record)]
        records.print_all(self.tables(record), lines)

    def markdown(self, record: Record) -> str:
        """Return the tables of a record for the documentation."""
        tables = (self.documentation or self.tables)(record)
        return "\n\n".join(table.markdown() for table in tables)

    def _measured(
        self,
        *,
        only: tuple[str, ...] = (),
        openvino_python: Path | None = None,
        before: Path | None = None,
        **options: Any,
    ) -> Record:
        load_average = os.getloadavg()[0]
        console = Console(stderr=True)
        try:
            openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
            earlier = Interpreter.of_tree(before) if before else None
            with tempfile.TemporaryDirectory() as workspace, console.status("") as status:

                def progress(stage: str) -> None:
                    status.update(stage)
                    if not console.is_terminal:
                        console.print(stage, soft_wrap=True, markup=False, highlight=False)

                run = Run(Path(workspace), progress, only, openvino, earlier)
                figures = dict(self.measure(run, Options(**options)))
            where = records.circumstances(
                "dragoman.benchmarks.compare",
                load_average,
                gpu=figures.pop("gpu", None),
                environments=[openvino] if openvino_python else [],
                trees={"dragoman, before": before} if before else {},
            )
        except DragomanError as error:
            raise click.ClickException(str(error)) from error
        return records.as_record(figures, where)
