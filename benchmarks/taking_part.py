"""Who takes part in a comparison: the options that its commands share, and the choice by names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from dragoman.errors import DragomanError

only_option = click.option(
    "--only",
    multiple=True,
    help="Only contenders whose name contains this text (ignoring case); may be repeated.",
)
openvino_option = click.option(
    "--openvino-python",
    type=click.Path(path_type=Path),
    help="Python of the environment with Optimum-Intel [default: the one that is running].",
)
before_option = click.option(
    "--before",
    type=click.Path(path_type=Path),
    help="Source tree of another version of Dragoman, which takes part.",
)


def selected(names: Sequence[str], only: Sequence[str], kind: str = "contender") -> set[str]:
    """The names that contain one of these texts, ignoring case; all if there are no texts.

    Args:
        kind: what the names are of, for the message

    Raises:
        DragomanError: none does.
    """
    texts = [text.lower() for text in only]
    found = {name for name in names if not texts or any(text in name.lower() for text in texts)}
    if not found:
        raise DragomanError(
            f"--only: expected part of a {kind}'s name, found {', '.join(only)}; the {kind}s are "
            f"{', '.join(names)}"
        )
    return found
