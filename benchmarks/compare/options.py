"""Options of the commands, of which several tasks have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..models.shapes import SHAPES

KINDS: dict[Any, Any] = {int: click.IntRange(1), Path: click.Path(path_type=Path)}


def option(
    name: str, text: str, default: Any = None, kind: Any = None, *, parameter: str = "", **more: Any
) -> click.Option:
    """Return an option of a command, which may be repeated if its default is a tuple.

    The kind is a type, by default the default's, a list of choices, or click's; numbers are
    positive.
    """
    if isinstance(default, tuple):
        text += " may be repeated."
        more |= {"multiple": True, "callback": lambda _, __, values: (*dict.fromkeys(values),)}
    example = default[0] if isinstance(default, tuple) and default else default
    kind = kind or (type(example) if isinstance(example, int) else str)
    return click.Option(
        [name, *([parameter] if parameter else [])],
        type=click.Choice(kind) if isinstance(kind, list) else KINDS.get(kind, kind),
        default=default,
        show_default=default not in (None, ()),
        help=text,
        **more,
    )


def argument(name: str, kind: Any = str) -> click.Argument:
    """Return an argument of a command."""
    return click.Argument([name], type=KINDS.get(kind, kind))


def batch_sizes(*default: int, what: str = "Sources decoded as one batch;") -> click.Option:
    """Return the option of batch sizes."""
    return option("--batch-size", what, default, parameter="batch_sizes")


def new_tokens(what: str = "source") -> click.Option:
    """Return the option of the number of new tokens."""
    text = f"Tokens generated for every {what}."
    return option("--new-tokens", text, 64, click.IntRange(1, 1023))


def each_with_threads(*default: int, note: str = "") -> click.Option:
    """Return the option of numbers of threads."""
    text = f"Threads of every contender, each of which takes part with each number{note};"
    return option("--threads", text, default, int)


def rounds(default: int = 5) -> click.Option:
    """Return the option of the number of rounds."""
    return option("--rounds", "Counted rounds; a warm-up comes before them.", default)


PUBLISHED = "Shape of the model: base and big are those of OPUS-MT models."
TEXT_SHAPES = [name for name, shape in SHAPES.items() if shape.family != "m2m_100"]
SHAPE = option("--shape", PUBLISHED, "base", TEXT_SHAPES)
SHARED = "Tokens that encoder and decoder share; by default 32000, or what the shape has."
VOCAB_SIZE = option("--vocab-size", SHARED, kind=click.IntRange(8))
CORES = option("--cores", "Cores to arrange [default: all].", kind=int)
WITH_LISTS = "Dragoman and CTranslate2 in int8 with a shortlist, besides."
SHORTLIST = option("--shortlist", WITH_LISTS, False, is_flag=True)
THREADS = option("--threads", "Threads of every contender.", 2)
ONLY = option("--only", "Only contenders whose name contains this text (ignoring case);", ())
ENVIRONMENT = "Python of the environment with Optimum-Intel [default: the one that is running]."
OPENVINO = option("--openvino-python", ENVIRONMENT, kind=Path)
TREE = "Source tree of another version of Dragoman, which takes part."
BEFORE = option("--before", TREE, kind=Path)
WAYS = (THREADS, rounds(), ONLY, OPENVINO)
"""Of tasks whose contenders all run with one number of threads."""
