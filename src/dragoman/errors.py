"""The base class of all errors that users see."""

import tempfile
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
    """Try whether a file can be created where the path would be; nothing is left behind.

    Raises:
        DragomanError: the path cannot be created or replaced.
    """
    directory = next(parent for parent in path.absolute().parents if parent.exists())
    if not directory.is_dir():
        raise DragomanError(f"cannot write {path}: {directory} is not a directory")
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise DragomanError(f"cannot write {path}: {directory}: {error.strerror}") from error


def refuse_unwritable_file(path: Path) -> None:
    """As `refuse_unwritable`, of a file.

    Raises:
        DragomanError: as there, or it is a directory.
    """
    if path.is_dir():
        raise DragomanError(f"{path}: expected the name of a file, found a directory")
    refuse_unwritable(path)
