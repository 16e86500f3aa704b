"""Messages on standard error: one line each, whatever the texts in them hold."""

from __future__ import annotations

import click

from dragoman.printable import printable


def tell(message: str) -> None:
    """Print a message, with escapes in place of characters that a terminal would act on."""
    click.echo(printable(message), err=True)
