"""A task: a kind of work at which contenders are compared, and the command that measures it.

click and rich are imported only when a command runs, since contenders import this module in
environments without them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.errors import DragomanError

from ..models.shapes import SHAPES
from ..processes import HERE, Interpreter
from . import record as records
from .record import Record, Table
from .rounds import Contender

if TYPE_CHECKING:
    import click
    from matplotlib.figure import Figure

MODULE = "dragoman.benchmarks.compare"

AnyContender = TypeVar("AnyContender", bound=Contender[Any, Any])


@dataclass(frozen=True)
class Option:
    """An option of a command, or an argument if its name has no dashes.

    Attributes:
        kind: type of the value: str, int, float, bool (a switch) or Path
        default: default value; a tuple if the option may be repeated
        least, most: bounds of a number
        parameter: name of the keyword argument, if it differs
    """

    name: str
    help: str = ""
    kind: type = str
    default: Any = None
    least: float = 1
    most: float | None = None
    choices: Sequence[str] = ()
    required: bool = False
    parameter: str = ""

    def decorate(self, command: Any) -> Any:
        """Add this option to a command."""
        import click

        kinds: dict[type, Any] = {
            int: click.IntRange(int(self.least), None if self.most is None else int(self.most)),
            float: click.FloatRange(self.least, self.most),
            Path: click.Path(path_type=Path),
            str: click.Choice(self.choices) if self.choices else str,
        }
        if not self.name.startswith("-"):
            return click.argument(self.name, type=kinds[self.kind])(command)
        multiple = isinstance(self.default, tuple)
        more: dict[str, Any] = {}
        if multiple:
            more = {"multiple": True, "callback": lambda _, __, values: (*dict.fromkeys(values),)}
        elif self.kind is bool:
            more = {"is_flag": True}
        names = [self.name, *([self.parameter] if self.parameter else [])]
        return click.option(
            *names,
            type=kinds.get(self.kind),
            default=self.default,
            show_default=self.default not in (None, ()),
            required=self.required,
            help=self.help + (" may be repeated." if multiple else ""),
            **more,
        )(command)


@dataclass(frozen=True)
class Run:
    """The common settings of every task.

    Attributes:
        directory: empty directory for checkpoints and conversions
        progress: receives a description of each stage
        only: substrings of names that select contenders; empty: all
        openvino: interpreter with Optimum-Intel and OpenVINO's tools
        before: interpreter with another version of Dragoman, to compare with
    """

    directory: Path
    progress: Callable[[str], None] = lambda stage: None
    only: Sequence[str] = ()
    openvino: Interpreter = HERE
    before: Interpreter | None = None

    def selected(self, names: Iterable[str]) -> set[str]:
        """Return the selected names.

        Raises:
            DragomanError: none is selected.
        """
        known = list(names)
        texts = [text.lower() for text in self.only]
        found = {name for name in known if not texts or any(text in name.lower() for text in texts)}
        if not found:
            raise DragomanError(
                f"--only: expected part of a contender's name, found {', '.join(self.only)}; the "
                f"contenders are {', '.join(known)}"
            )
        return found

    def chosen(self, contenders: Iterable[AnyContender]) -> list[AnyContender]:
        """Return the selected contenders.

        Raises:
            DragomanError: none is selected.
        """
        everyone = list(contenders)
        names = self.selected(contender.name for contender in everyone)
        return [contender for contender in everyone if contender.name in names]


@dataclass(frozen=True)
class Task:
    """The definition of a comparison.

    Attributes:
        name: name of the command
        help: help text of the command
        options: options of the command, which are keyword arguments of `measure`; `ONLY`,
            `OPENVINO` and `BEFORE` are in the run instead
        measure: measures contenders, and returns the figures of the record, including `failures`
        rows: key of the figures that must not be empty
        file: returns the stem of the output files from the record and the options
        tables, notes: return the printed tables of a record, and the lines below them
        documentation: returns the tables of the documentation, if they differ
        picture: draws a record, in a file of the type `picture_type`
        device: describes the GPU from the options, if one is measured
        copy: writes further files from (record, stem of the record's file, options)
        problems: returns failed checks of a record, which fail the command after it is written
    """

    name: str
    help: str
    options: Sequence[Option]
    measure: Callable[..., Mapping[str, Any]]
    rows: str
    file: Callable[[Record, Mapping[str, Any]], str]
    tables: Callable[[Record], Iterable[Table]]
    notes: Callable[[Record], Iterable[str]] = lambda record: ()
    documentation: Callable[[Record], Iterable[Table]] | None = None
    picture: Callable[[Record], Figure] | None = None
    picture_type: str = "svg"
    device: Callable[[Mapping[str, Any]], str | None] = lambda options: None
    copy: Callable[[Record, Path, Mapping[str, Any]], None] | None = None
    problems: Callable[[Record], Sequence[str]] = lambda record: ()

    def command(self) -> click.Command:
        """Return the command that measures, prints and writes the record and the picture."""
        import click

        def invoke(**options: Any) -> None:
            record = self._measured(**options)
            self.show(record)
            if not record[self.rows]:
                raise click.ClickException(
                    f"expected at least one contender that works, found none{_reasons(record)}"
                )
            output: Path | None = options["output"]
            if output is not None:
                output.mkdir(parents=True, exist_ok=True)
                self.write(record, output / self.file(record, options), options)
            if problems := self.problems(record):
                raise click.ClickException("; ".join(problems))

        what = "the figures, as JSON" + (" and as a picture" if self.picture else "")
        output = Option("--output", f"Folder to write {what} to.", Path)
        command: Any = invoke
        for option in reversed([*self.options, output]):
            command = option.decorate(command)
        made: click.Command = click.command(self.name, help=self.help)(command)
        return made

    def show(self, record: Record) -> None:
        """Print a record."""
        records.show(record, self.tables(record), self.notes(record))

    def markdown(self, record: Record) -> str:
        """Return the tables of a record for the documentation."""
        tables = (self.documentation or self.tables)(record)
        return "\n\n".join(table.markdown() for table in tables)

    def write(self, record: Record, stem: Path, options: Mapping[str, Any]) -> None:
        """Write a record, and its picture if any."""
        records.write_json(record, stem.with_name(f"{stem.name}.json"))
        if self.picture is not None:
            from .picture_style import write

            path = stem.with_name(f"{stem.name}.{self.picture_type}")
            write(self.picture(record), path, dpi=150)
        if self.copy is not None:
            self.copy(record, stem, options)

    def _measured(
        self,
        *,
        output: Path | None,
        only: tuple[str, ...] = (),
        openvino_python: Path | None = None,
        before: Path | None = None,
        **options: Any,
    ) -> Record:
        import click
        from rich.console import Console

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
                figures = self.measure(run, **options)
            where = records.circumstances(
                MODULE,
                load_average,
                gpu=self.device(options),
                environments=[openvino] if openvino_python else [],
                trees={"dragoman, before": before} if before else {},
            )
        except DragomanError as error:
            raise click.ClickException(str(error)) from error
        return records.as_record(figures, where)


def read_record(path: Path) -> Record:
    """Read a record from a file.

    Raises:
        DragomanError: the file is not JSON.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DragomanError(f"{path}: expected a record in JSON, found: {error}") from error
    return record


def _reasons(record: Record) -> str:
    failures = record["failures"] if isinstance(record.get("failures"), list) else []
    reasons = "; ".join(f"{each['contender']}: {each['reason']}" for each in failures)
    return f": {reasons}" if reasons else ""


SHAPE = Option(
    "--shape",
    "Shape of the model: base and big are those of OPUS-MT models.",
    choices=tuple(SHAPES),
    default="base",
)
VOCAB_SIZE = Option(
    "--vocab-size",
    "Tokens that encoder and decoder share; by default 32000, or what the shape has.",
    int,
    least=8,
)
THREADS = Option(
    "--threads",
    "Threads of every contender, each of which takes part with each number;",
    int,
    (1, 2),
)
ROUNDS = Option("--rounds", "Counted rounds; a warm-up comes before them.", int, 5)
ONLY = Option(
    "--only", "Only contenders whose name contains this text (ignoring case);", default=()
)
OPENVINO = Option(
    "--openvino-python",
    "Python of the environment with Optimum-Intel [default: the one that is running].",
    Path,
)
BEFORE = Option("--before", "Source tree of another version of Dragoman, which takes part.", Path)
