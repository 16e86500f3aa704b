"""The command `dragoman distill`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from dragoman import api
from dragoman.distillation.judging import Judged
from dragoman.metrics import shown_figure
from dragoman.reference_model.training.options import TrainingStoppedError

from ..shared.options import (
    PATH,
    SectionedCommand,
    counted,
    force_option,
    in_option_names,
    in_section,
    language_options,
    option_names,
    threads_option,
)
from ..shared.terminal import notify, shown_progress
from .train import same_command
from .verify import VerificationFailedError

_data, _judging = in_section("Data", type=PATH, multiple=True), in_section("Judging")


@click.command(cls=SectionedCommand)
@click.argument("teacher", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Directory of all results.")
@_data(
    "--pairs",
    help="Training data: a file of sources and targets, separated by tabs; or, given twice, a file "
    "of sources and a file of targets.",
)
@_data("--dev", help="Validation data, in the same form.")
@_data("--test", help="Data to judge on, in the same form [--dev].")
@_data(
    "--data",
    multiple=False,
    help="Folder of the data of the recipe that trained TEACHER, in place of these.",
)
@_data("--sources", help="More texts for TEACHER to translate, one per line; repeatable.")
@in_section("Data")("--originals", is_flag=True, help="Train on the targets of the pairs, too.")
@click.option(
    "--student",
    type=PATH,
    help="JSON or YAML file, as for train, with what differs from the defaults.",
)
@counted("--beams", default=4, help="Beams of the teacher [4].")
@language_options
@counted("--epochs", help="Number of epochs [the student's].")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "int4"]),
    default="int8",
    metavar="FORMAT",
    help="fp32, int8, int4: that of the student's bundle [int8].",
)
@click.option(
    "--shortlist/--no-shortlist",
    default=True,
    help="Learn a shortlist from the translations [yes].",
)
@_judging(
    "--within",
    type=click.FloatRange(min=0),
    default=1.0,
    metavar="X",
    help="The most points of 100 that the student may lose [1].",
)
@_judging(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="As for train; the first one decides [BLEU and chrF].",
)
@threads_option
@force_option
@click.pass_context
def distill(
    context: click.Context, /, teacher: Path, output: Path, force: bool, **given: Any
) -> None:
    """Teach a small, fast student to translate as TEACHER, a bundle, does.

    TEACHER translates the sources with beams; a student with a recurrent decoder is trained on
    these translations, built with a shortlist, and judged on held-out data. OUTPUT/bundle appears
    only if it is as good as TEACHER, within --within; otherwise the exit status is 1. The same
    command goes on after an interruption.

    \b
    dragoman distill bundles/en-de --pairs train.tsv --dev dev.tsv -o students/en-de
    """
    with option_names(context.command):
        try:
            found = api.distill(teacher, output, overwrite=force, progress=shown_progress, **given)
        except TrainingStoppedError as error:
            notify(f"Stopped after step {error.step}. To go on: {same_command()}")
            sys.exit(128 + error.signal)
        except (api.DistillationFailedError, api.ParityFailedError) as error:
            if isinstance(error, api.DistillationFailedError):
                _print_rows(error.rows)
            message = in_option_names(str(error), context.command)
            raise VerificationFailedError(message) from error
    _print_rows(found.rows)
    if found.rejected:
        notify(f"{found.rejected:,} of {found.sources:,} sources were rejected by the teacher")
    notify(
        f"The student loses {found.loss:.2f} points of {found.metric}. "
        f"Next: dragoman run {found.bundle.directory} ...",
        err=False,
    )


def _print_rows(rows: Sequence[Judged]) -> None:
    names = list(rows[0].figures)
    table = Table("", *(Column(name, justify="right") for name in (*names, "sentences/s", "MB")))
    for row in rows:
        table.add_row(
            row.name,
            *(shown_figure(name, row.figures[name]) for name in names),
            "" if row.sentences_per_second is None else f"{row.sentences_per_second:,.0f}",
            "" if row.megabytes is None else f"{row.megabytes:.1f}",
        )
    Console().print(table)
