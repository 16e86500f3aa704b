"""Commands with so many options that their help lists them under headings."""

from __future__ import annotations

from typing import Any

import click

COLUMN = 30
"""A longer option has its explanation on the next line."""


class SectionedOption(click.Option):
    """An option that stands under a heading."""

    def __init__(self, *args: Any, section: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """Lists options by section, in the order in which sections first occur; those of no section
    stand under `Options`.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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
