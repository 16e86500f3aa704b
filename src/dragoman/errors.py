"""The one exception that users meet."""

from pathlib import Path


class DragomanError(Exception):
    """Something given to Dragoman is not as it must be.

    The message says what was expected and what was found, in words for the user. The command line
    prints it in place of a traceback and exits with status 2.
    """


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise a DragomanError where something would be replaced that nobody asked to be."""
    if path.exists() and not overwrite:
        raise DragomanError(
            f"{path} exists already: choose another name, or ask for it to be replaced (--force)"
        )
