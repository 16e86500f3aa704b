"""Reads files from elsewhere only if they are regular and not too large, and writes files whole.

A pipe in place of a file would be waited for without end, and a sparse file of a terabyte would
fill the memory.
"""

import errno
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError

SETTINGS_BYTES = 16 << 20
"""The most for a file of settings, such as `config.json`; indices of the parts of weights, the
longest, have up to 9 MB."""
VOCABULARY_BYTES = 128 << 20
"""The most for a vocabulary or a tokenizer; those of a million tokens have up to 60 MB."""

_KINDS: Mapping[str, Callable[[int], bool]] = {
    "a directory": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


class FileError(DragomanError):
    """A file that cannot be read as what it should be.

    Attributes:
        problem: the problem, as "expected X, found Y"
    """

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


def check_regular(path: Path, limit: int | None = None) -> int:
    """Check a file before a library opens it.

    Args:
        limit: the most bytes that it may have; None: as many as the machine has memory

    Returns:
        its size in bytes

    Raises:
        FileError: there is none, it is something else than a regular file, larger or unreadable.
    """
    try:
        str(path).encode()  # libraries take no other
        status = path.stat()
        if not os.access(path, os.R_OK):
            raise FileError(path, f"expected a readable file: {os.strerror(errno.EACCES)}")
    except FileNotFoundError as error:
        raise FileError(path, "expected a file, found none") from error
    except OSError as error:
        raise FileError(path, f"expected a readable file: {error.strerror}") from error
    except ValueError as error:
        raise FileError(path, "expected a path in UTF-8, without NUL") from error
    if not stat.S_ISREG(status.st_mode):
        kinds = (name for name, is_kind in _KINDS.items() if is_kind(status.st_mode))
        raise FileError(path, f"expected a regular file, found {next(kinds, 'another kind')}")
    most, why = (
        (memory_of_machine(), ", the memory of this machine") if limit is None else (limit, "")
    )
    if status.st_size > most:
        raise FileError(
            path, f"expected a file of at most {most} bytes{why}, found one of {status.st_size}"
        )
    return status.st_size


def read_regular(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes.

    Raises:
        FileError: there is no such file, it is no regular file, is larger, or cannot be read.
    """
    size = check_regular(path, limit)
    try:
        with path.open("rb") as file:
            data = file.read(size + 1)
            if len(data) > size:  # a file whose system does not know its size, or that grew
                data += file.read(limit + 1 - len(data))
    except OSError as error:
        raise FileError(path, f"expected a readable file: {error.strerror}") from error
    if len(data) > limit:
        raise FileError(path, f"expected a file of at most {limit} bytes, found a longer one")
    return data


def memory_of_machine() -> int:
    """The bytes of physical memory; more than any machine has where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return 1 << 62


def user_cache(*names: str) -> Path | None:
    """Return the path of a file in the user's cache, by names of folders and file below it.

    The cache is `$XDG_CACHE_HOME/dragoman`, or else `~/.cache/dragoman`.

    Returns:
        None: the user has no home, as in a container without an entry in passwd
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        directory = Path(root) if root else Path.home() / ".cache"
    except RuntimeError:
        return None
    return directory.joinpath("dragoman", *names)


NO_HOME = "the user has no home directory: set HOME or XDG_CACHE_HOME"
"""Why a file is not kept in the cache where `user_cache` returns None."""


def write_whole(
    path: Path, write: Callable[[Path], object], failures: tuple[type[Exception], ...] = (OSError,)
) -> None:
    """Write a file completely or not at all.

    `write` writes a temporary file next to `path`. It is renamed to `path` once its contents are on
    the disk, so that a power failure leaves no empty file. The directory is created if it does not
    exist.

    Args:
        failures: the exceptions that `write` raises if it cannot write

    Raises:
        DragomanError: the file cannot be written; a previous file at `path` is left unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except failures as error:
        raise DragomanError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):  # it is not there, or the directory is closed or read-only
            partial.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 completely or not at all, see `write_whole`.

    Raises:
        DragomanError: the file cannot be written.
    """
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
