"""The bundle on disk: read with everything checked, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dragoman.errors import DragomanError, refuse_existing

from .manifest import MANIFEST_FILE, BundleError, FileRecord, Manifest, manifest_from_json

_CANNOT_WRITE = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EROFS,
}


@dataclass(frozen=True)
class Bundle:
    directory: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        return self.directory / name

    @property
    def size(self) -> int:
        """Bytes of all files of the bundle but the manifest."""
        return sum(file.size for file in self.manifest.files)


def read_bundle(directory: Path) -> Bundle:
    """Read a bundle and check it: the manifest, and presence, size and SHA-256 of every file.

    Raises:
        BundleError: lists everything that is wrong.
    """
    manifest_path = directory / MANIFEST_FILE
    try:
        text = manifest_path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "no such directory" if not directory.exists() else f"no {MANIFEST_FILE} in it"
        raise BundleError(str(directory), [f"expected a bundle, found {what}"]) from error
    except UnicodeDecodeError as error:
        raise BundleError(str(manifest_path), [f"expected UTF-8 text: {error}"]) from error
    except OSError as error:
        raise BundleError(str(manifest_path), [f"cannot be read: {error.strerror}"]) from error
    except ValueError as error:  # NUL in the path
        raise BundleError(repr(str(directory)), [f"expected a path: {error}"]) from error
    manifest = manifest_from_json(text, str(manifest_path))
    problems = [p for file in manifest.files for p in _file_problems(directory, file)]
    if problems:
        raise BundleError(str(directory), problems)
    return Bundle(directory, manifest)


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Records of all files in a directory, the manifest apart, in order of path."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_FILE)
    return tuple(
        FileRecord(p.relative_to(directory).as_posix(), p.stat().st_size, _sha256(p)) for p in paths
    )


@contextlib.contextmanager
def new_directory(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A directory to fill, that becomes `destination` when the block ends well.

    If it ends with an exception, or the process dies, `destination` is as it was. The partial
    directory lies beside it, and is removed unless the process was killed.

    Raises:
        DragomanError: the destination exists (without `overwrite`) or cannot be written.
    """
    _refuse_existing(destination, overwrite)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = destination.parent / f".{destination.name}.partial-{secrets.token_hex(4)}"
        partial.mkdir()
    except OSError as error:
        raise DragomanError(
            f"cannot write {destination}: {error.strerror} ({error.filename})"
        ) from error
    try:
        yield partial
        _flush(partial)
        _refuse_existing(destination, overwrite)
        _replace(partial, destination, overwrite)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise DragomanError(
            f"cannot write {destination}: {error.strerror}; nothing was left behind"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write or replace the manifest in one step."""
    partial = directory / (MANIFEST_FILE + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(directory / MANIFEST_FILE)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise DragomanError(
            f"cannot write {directory / MANIFEST_FILE}: {error.strerror or error}"
        ) from error


def _file_problems(directory: Path, file: FileRecord) -> list[str]:
    relative = PurePosixPath(file.path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        return [f"{file.path}: expected a path inside the bundle"]
    path = directory / relative
    try:
        size = path.stat().st_size
        if not path.is_file():
            return [f"{file.path}: expected a file"]
        if size != file.size:
            return [f"{file.path}: expected {file.size} bytes, found {size}"]
        if _sha256(path) != file.sha256:
            return [f"{file.path}: its SHA-256 is not the recorded one: the file was changed"]
    except FileNotFoundError:
        return [f"{file.path}: missing"]
    except OSError as error:
        return [f"{file.path}: cannot be read: {error.strerror}"]
    except ValueError as error:  # NUL or a lone surrogate
        return [f"{file.path!r}: expected a path inside the bundle: {error}"]
    return []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_existing(destination: Path, overwrite: bool) -> None:
    refuse_existing(destination, overwrite)
    if not destination.exists():
        return
    if not destination.is_dir() or (
        any(destination.iterdir()) and not (destination / MANIFEST_FILE).is_file()
    ):
        raise DragomanError(f"{destination} exists and is not a bundle: it will not be replaced")


def _replace(partial: Path, destination: Path, overwrite: bool) -> None:
    old = None
    if overwrite and destination.exists():
        old = partial.with_name(partial.name + ".old")
        destination.rename(old)
    try:
        partial.rename(destination)
    except OSError:
        if old is not None:
            old.rename(destination)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _flush(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
