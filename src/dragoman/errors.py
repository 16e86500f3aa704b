"""The base class of all errors that users see."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType


class DragomanError(Exception):
    """An input, an option or the environment is not as expected.

    The message says what was expected, what was found and what to do. The command line prints it
    in place of a traceback and exits with status 2. The server answers with the message, `status`
    and `code`.

    Attributes:
        status: the HTTP status of the server's answer
        code: the name by which programs know the error
        headers: HTTP headers of the answer, besides the usual ones
    """

    status: int = 400
    code: str = "invalid_request"
    headers: Mapping[str, str] = MappingProxyType({})


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Check that a path may be written.

    Raises:
        DragomanError: the path exists, and may not be overwritten.
    """
    if path.exists() and not overwrite:
        raise DragomanError(
            f"{path} already exists: choose another name, or replace it with --force"
        )


def refuse_unwritable(path: Path) -> None:
    """Check that a file can be created at a path, and leave nothing behind.

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
    """Check that a file can be created or replaced at a path, and leave nothing behind.

    Raises:
        DragomanError: it cannot, or the path is a directory.
    """
    if path.is_dir():
        raise DragomanError(f"{path}: expected the name of a file, found a directory")
    refuse_unwritable(path)
