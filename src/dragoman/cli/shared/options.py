"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError
from dragoman.metrics import METRIC_NAMES
from dragoman.optimize.targets import ALL_PRECISIONS, TARGETS
from dragoman.runtime.backends.table import BACKEND_NAMES

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory of the bundle, which must not exist yet.",
)
revision_option = click.option(
    "--revision", help="Branch, tag or commit of a model at the Hugging Face Hub [main]."
)
target_option = click.option(
    "--target",
    type=click.Choice([target.name for target in TARGETS]),
    metavar="NAME",
    help="; ".join(f"{target.name}: {target.summary}" for target in TARGETS)
    + " [cpu; neutral for fp16 and bf16].",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(ALL_PRECISIONS),
    metavar="FORMAT",
    default="fp32",
    help=f"{', '.join(ALL_PRECISIONS)} [fp32]; the cpu target has no fp16 and bf16.",
)
calibration_option = click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Inputs to determine scales and number formats on: file of texts, one per line, or "
    "directory of audio clips [random inputs].",
)
keep_fp32_option = click.option(
    "--keep-fp32",
    metavar="NAME",
    multiple=True,
    help="Keep a matrix product or layer in fp32, see `dragoman sensitivity`; repeatable.",
)
attention_option = click.option(
    "--with-attention",
    is_flag=True,
    help="Add the graph for `dragoman attention`; not with engines.",
)
force_option = click.option("--force", is_flag=True, help="Replace the output if it exists.")
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Processor threads [all cores]."
)
backend_option = click.option(
    "--backend",
    metavar="NAME",
    type=click.Choice(BACKEND_NAMES),
    help=f"{', '.join(BACKEND_NAMES)} [auto].",
)
inputs_option = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    help="Inputs to compare on: file of texts, one per line, or directory or list of audio clips; "
    "in a file or list, a tab and the reference (encoder-only: second text) may follow "
    "[the held-out data].",
)
references_option = click.option(
    "--references",
    type=click.Path(path_type=Path),
    help="File of references, one for each input, or of sources, tabs and references [those of the "
    "inputs].",
)
metric_option = click.option(
    "--metric",
    "metrics",
    type=click.Choice(METRIC_NAMES),
    metavar="NAME",
    multiple=True,
    help=f"{', '.join(METRIC_NAMES)}: compare outputs with references; repeatable [by task].",
)
source_language_option = click.option(
    "--source-language", metavar="CODE", help="Language of the inputs [the bundle's]."
)
target_language_option = click.option(
    "--target-language", metavar="CODE", help="Language of the references [the bundle's]."
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Compare on at most N inputs [all]."
)


COLUMN = 32
"""The widest column of options; a longer option has its explanation on the next line."""


class SectionedOption(click.Option):
    """An option with a section heading."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists options by section, in the order of their first option.

    Options without a section are listed under `Options`.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                section = getattr(parameter, "section", "Options")
                sections.setdefault(section, []).append(record)
        widths = [len(names) for rows in sections.values() for names, _ in rows]
        width = max(w for w in widths if w <= COLUMN)
        for heading, rows in sections.items():
            with formatter.section(heading):
                aligned = [(names.ljust(width), text) for names, text in rows]
                formatter.write_dl(aligned, col_max=width)


@contextmanager
def option_names(command: click.Command) -> Iterator[None]:
    """Replace parameter names in errors by option names.

    For example, `num_beams` becomes `--beams`.
    """
    try:
        yield
    except DragomanError as error:
        raise DragomanError(in_option_names(str(error), command)) from error


def in_option_names(message: str, command: click.Command) -> str:
    """Return a message with option names in place of parameter names.

    A name that is also an English word, such as `prefix`, is replaced only before a colon. Quoted
    text is unchanged.
    """
    options = {
        parameter.name: parameter.opts[0]
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name
    }
    any_name = "|".join(sorted(options, key=len, reverse=True))
    quoted = r"""(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)"(?:[^"\\]|\\.)*\""""
    in_front = rf"(?:^|(?<=; ))(?:{any_name})(?:, (?:{any_name}))*(?=: )"
    within = rf"\b(?:{'|'.join(name for name in options if '_' in name)})\b"
    found = re.compile(rf"(?P<quoted>{quoted})|{in_front}|{within}")

    def replaced(match: re.Match[str]) -> str:
        if match["quoted"]:
            return match.group()
        return ", ".join(options[name] for name in match.group().split(", "))

    return found.sub(replaced, message)
