"""Errors of the library, in the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dragoman import DragomanError


@contextmanager
def option_names(command: click.Command) -> Iterator[None]:
    """Let errors that name an option of the library name that of the command line, which has the
    library's name for a parameter: `num_beams` becomes `--beams`.
    """
    try:
        yield
    except DragomanError as error:
        raise DragomanError(in_option_names(str(error), command)) from error


def in_option_names(message: str, command: click.Command) -> str:
    """A message with the command line's names in place of the library's.

    A name that is a word of English too, such as `prefix`, is taken for an option where problems
    name theirs: in front of a colon. What is quoted stays as it is.
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
