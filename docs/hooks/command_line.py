"""Writes the reference of every command, from the code of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.pages import Page

from dragoman.cli.main import cli

PAGE = "reference/command-line.md"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Append a section for each command to the page of the command line."""
    if page.file.src_uri != PAGE:
        return markdown
    root = click.Context(cli, info_name="dragoman", **cli.context_settings)
    lines = [markdown, *_section(root)]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=root)
        lines += _section(context)
        for inner, subcommand in getattr(command, "commands", {}).items():
            lines += _section(click.Context(subcommand, info_name=inner, parent=context))
    return "\n".join(lines)


def _section(context: click.Context) -> Iterator[str]:
    """Heading, usage, help and options of a command, as `--help` has them."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"\n## {context.command_path}\n\n```bash\n{usage}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        preformatted = paragraph.removeprefix("\b\n")
        yield paragraph if preformatted == paragraph else f"```bash\n{preformatted}\n```"
        yield ""
    yield from ("| option | |", "| --- | --- |")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record:
            names, text = record
            yield f"| `{names}` | {text.replace('|', chr(92) + '|')} |"
