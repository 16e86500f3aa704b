"""The base class of all errors that users see."""

import os
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


def refuse_unwritable(path: Path) -> None:
    """Refuse what permissions rule out; writing may still fail for other reasons.

    Raises:
        DragomanError: the path cannot be created or replaced.
    """
    directory = next(parent for parent in path.absolute().parents if parent.exists())
    if not directory.is_dir():
        raise DragomanError(f"cannot write {path}: {directory} is not a directory")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DragomanError(f"cannot write {path}: {directory} cannot be written to")
