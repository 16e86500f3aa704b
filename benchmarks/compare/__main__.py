"""Compares Dragoman with other tools on the same weights and inputs, interleaved in one run.

    python -m dragoman.benchmarks.compare greedy --output benchmarks/results
    python -m dragoman.benchmarks.compare tables greedy RECORD

The second command prints the tables of a stored record in Markdown.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from .serving.serving import SERVING
from .serving.soak import SOAK
from .task import Task
from .tasks.encoding import ENCODING
from .tasks.greedy import BEAMS, GREEDY, LANGUAGE_MODEL
from .tasks.growth import GROWTH
from .tasks.large import LARGE
from .tasks.speech import SPEECH
from .tasks.throughput import THROUGHPUT
from .tasks.training import TRAINING
from .tasks.translation import TRANSLATION

ALL = GREEDY, BEAMS, LANGUAGE_MODEL, ENCODING, SPEECH, THROUGHPUT, GROWTH, LARGE, SERVING
TASKS: dict[str, Task] = {task.name: task for task in (*ALL, TRANSLATION, TRAINING, SOAK)}


@click.group()
def main() -> None:
    """Compare Dragoman with other tools.

    What cannot be measured, such as a tool that is not installed, is reported with the reason.
    """


@main.command()
@click.argument("task", type=click.Choice(list(TASKS)))
@click.argument("record", type=click.Path(path_type=Path))
def tables(task: str, record: Path) -> None:
    """Print the tables of RECORD, which TASK wrote, in Markdown."""
    try:
        click.echo(TASKS[task].markdown(json.loads(record.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        found = f"{record}: expected a record in JSON, found: {error}"
        raise click.ClickException(found) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise click.ClickException(
            f"{record}: expected a record of dragoman.benchmarks.compare {task}, found: "
            f"{type(error).__name__} {error}"
        ) from error


for _task in TASKS.values():
    main.add_command(_task.command())

if __name__ == "__main__":
    main()
