"""Options that several commands share."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError
from dragoman.metrics import METRIC_NAMES
from dragoman.optimize.targets import ALL_PRECISIONS, TARGETS
from dragoman.runtime.backends import BACKEND_NAMES, gpu_index
from dragoman.runtime.format.known_answers import CHECKS

PATH = click.Path(path_type=Path)
POSITIVE = click.IntRange(min=1)
counted = functools.partial(click.option, metavar="N", type=POSITIVE)
json_option = functools.partial(click.option, "--json", "as_json", is_flag=True)


class FiniteRange(click.FloatRange):
    """A range of finite numbers. Comparisons, also with bounds, do not exclude "nan"."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert a value, and check that it is finite and within the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def gathered(group: str, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add options to a command, which receives their values as the dictionary `group`."""

    def add(function: Any) -> Any:
        @functools.wraps(function)
        def command(*positional: Any, **values: Any) -> Any:
            values[group] = {name: values.pop(name) for name in names}
            return function(*positional, **values)

        before = len(getattr(function, "__click_params__", ()))
        for option in reversed(options):
            option(command)
        names = [parameter.name for parameter in vars(command)["__click_params__"][before:]]
        return command

    return add


def combined(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make one decorator of options, which the help lists in this order."""

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


bundle_argument = click.argument("bundle", type=PATH)
output_option = click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    help="Directory of the bundle, which must not exist yet.",
)
checkpoint_options = combined(
    click.option(
        "--revision", help="Branch, tag or commit of a model at the Hugging Face Hub [main]."
    ),
    click.option(
        "--adapter",
        "adapters",
        type=PATH,
        metavar="DIR",
        multiple=True,
        help="LoRA adapter of PEFT to merge into the weights; repeatable.",
    ),
)
audio_window_option = click.option(
    "--audio-window",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Speech: shorten what the encoder reads at once, for short clips.",
)
target_options = combined(
    click.option(
        "--target",
        type=click.Choice([target.name for target in TARGETS]),
        metavar="NAME",
        help="; ".join(f"{target.name}: {target.summary}" for target in TARGETS)
        + " [cpu; neutral for fp16 and bf16].",
    ),
    click.option(
        "--precision",
        type=click.Choice(ALL_PRECISIONS),
        metavar="FORMAT",
        default="fp32",
        help=f"{', '.join(ALL_PRECISIONS)} [fp32]; the cpu target has no fp16 and bf16.",
    ),
    click.option(
        "--calibration",
        type=PATH,
        help="Inputs to determine scales and number formats on: file of texts, one per line, or "
        "directory of audio clips [random inputs].",
    ),
    click.option(
        "--keep-fp32",
        metavar="NAME",
        multiple=True,
        help="Keep a product or layer in fp32, see `dragoman sensitivity`; repeatable.",
    ),
)
attention_option = click.option(
    "--with-attention",
    is_flag=True,
    help="Add the graph for `dragoman attention`; not with engines.",
)
split_option = click.option(
    "--split-special-tokens",
    is_flag=True,
    help="Read special tokens in texts, such as </s>, as plain text.",
)
force_option = click.option("--force", is_flag=True, help="Replace the output if it exists.")
threads_option = counted("--threads", help="Processor threads [all cores].")
backend_option = click.option(
    "--backend",
    metavar="NAME",
    type=click.Choice(BACKEND_NAMES),
    help="openvino, onnxruntime(-cuda), tensorrt(-rtx) [auto].",
)


def check_device(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse a `--device` that is not the name of a device."""
    try:
        gpu_index(value)
    except DragomanError as error:
        raise click.UsageError(f"--{error}") from error
    return value


device_option = click.option(
    "--device",
    metavar="NAME",
    callback=check_device,
    help="cpu, cuda or cuda:N, which is a GPU [by backend].",
)
devices_option = click.option(
    "--device",
    metavar="NAME",
    multiple=True,
    help="cpu, cuda or cuda:N; repeatable, for several GPUs [by backend].",
)
fallback_option = click.option(
    "--allow-fallback", is_flag=True, help="Run nodes without a CUDA kernel on the processor."
)
check_option = click.option(
    "--check",
    metavar="WHEN",
    type=click.Choice(CHECKS),
    default="once",
    help="Check known answers once on this machine, always, never [once].",
)
loading_options = gathered(
    "loading", backend_option, device_option, check_option, fallback_option, threads_option
)
"""Adds the options of `load`, whose values a command gets as `loading`."""


class _MetricName(click.Choice):  # type: ignore[type-arg]
    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        return value if value.startswith("bleu:") else super().convert(value, param, ctx)


language_options = combined(
    click.option(
        "--source-language", metavar="CODE", help="Language of the inputs [the bundle's]."
    ),
    click.option(
        "--target-language", metavar="CODE", help="Language of the references [the bundle's]."
    ),
)
comparison_options = combined(
    click.option(
        "--inputs",
        type=PATH,
        help="Inputs to compare on: file of texts, one per line, or directory or list of audio "
        "clips; in a file or list, a tab and the reference (encoder-only: second text) may follow "
        "[the held-out data].",
    ),
    click.option(
        "--references",
        type=PATH,
        help="File of references, one for each input, or of sources, tabs and references [those of "
        "the inputs].",
    ),
    click.option(
        "--metric",
        "metrics",
        type=_MetricName(METRIC_NAMES),
        metavar="NAME",
        multiple=True,
        help=f"{', '.join(METRIC_NAMES)}: compare outputs with references; repeatable [by task].",
    ),
    language_options,
    counted("--limit", help="Compare on at most N inputs [all]."),
)


COLUMN = 32
"""The widest column of options; a longer option has its explanation after it, or on the next
line."""


class SectionedOption(click.Option):
    """An option with a section heading."""

    def __init__(self, *names: Any, section: str, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.section = section


def in_section(heading: str, **attributes: Any) -> Callable[..., Callable[[Any], Any]]:
    """Return what makes an option of a section, as `click.option` makes one without."""
    return functools.partial(click.option, cls=SectionedOption, section=heading, **attributes)


class SectionedCommand(click.Command):
    """A command whose help lists options by section, in the order of their first option.

    Other options are listed under `Options`. Flags are listed as --[no-]flag, and --help not at
    all; there are no empty lines between sections or in the description, so that all fit on a
    screen.
    """

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description."""
        begin = len(formatter.buffer)
        super().format_help_text(ctx, formatter)
        text = "".join(formatter.buffer[begin:])
        formatter.buffer[begin:] = [text.replace("\n\n", "\n").lstrip("\n")]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record and "--help" not in parameter.opts:
                record = (re.sub(r"^--(\S+) / --no-\1$", r"--[no-]\1", record[0]), record[1])
                section = getattr(parameter, "section", "Options")
                sections.setdefault(section, []).append(record)
        widths = [len(names) for rows in sections.values() for names, _ in rows]
        width = max(w for w in widths if w <= COLUMN)
        for heading, rows in sections.items():
            formatter.write_heading(heading)
            with formatter.indentation():
                for names, text in rows:
                    line = f"{'':{formatter.current_indent}}{names}  {text}\n"
                    if len(names) > width and len(line) <= formatter.width:
                        formatter.write(line)
                    else:
                        formatter.write_dl([(names.ljust(width), text)], col_max=width)


@contextmanager
def option_names(command: click.Command) -> Iterator[None]:
    """Replace parameter names in errors by option names: `num_beams` becomes `--beams`."""
    try:
        yield
    except DragomanError as error:
        raise DragomanError(in_option_names(str(error), command)) from error


def in_option_names(message: str, command: click.Command) -> str:
    """Return a message with option names in place of parameter names, see `renamed`."""
    options = {
        parameter.name: parameter.opts[0]
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name
    }
    return renamed(message, options)


def renamed(message: str, names: Mapping[str, str]) -> str:
    """Return a message with other names in place of parameter names.

    Quoted text is unchanged. A name that is also an English word is replaced only before a colon.
    """
    any_name = "|".join(sorted(names, key=len, reverse=True))
    quoted = r"""(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)"(?:[^"\\]|\\.)*\""""
    in_front = rf"(?:^|(?<=; ))(?:{any_name})(?:, (?:{any_name}))*(?=: )"
    within = rf"\b(?:{'|'.join(name for name in names if '_' in name)})\b"
    found = re.compile(rf"(?P<quoted>{quoted})|{in_front}|{within}")

    def replaced(match: re.Match[str]) -> str:
        if match["quoted"]:
            return match.group()
        return ", ".join(names[name] for name in match.group().split(", "))

    return found.sub(replaced, message)
