"""The base class of all errors that users see."""

from pathlib import Path


class DragomanError(Exception):
    """An input, an option or the environment is not as it must be.

    The message tells the user what was expected, what was found and what to do. The command line
    prints it in place of a traceback and exits with status 2.
    """


def refuse_existing(path: Path, overwrite: bool) -> None:
    """
    Raises:
        DragomanError: the path exists, and may not be overwritten.
    """
    if path.exists() and not overwrite:
        raise DragomanError(
            f"{path} already exists: choose another name, or replace it with --force"
        )
