"""Writes bundles atomically, and hashes every file during writing."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from dragoman.errors import DragomanError, refuse_existing
from dragoman.files.regular_files import FileError
from dragoman.files.strict_json import read_json_object

from .bundle import Bundle
from .known_answers import KNOWN_ANSWERS_FILE, KnownAnswers
from .manifest import MANIFEST_FILE, SIGNATURE_FILE, FileRecord, Manifest, TensorRTEngines
from .parity import Parity
from .plain_data import to_plain

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
_CHUNK = 1 << 20


class HashedFile:
    """A file open for writing, its size and, if wanted, the SHA-256 of its contents so far."""

    def __init__(self, file: BinaryIO, *, hashed: bool) -> None:
        self._file = file
        self._digest = hashlib.sha256() if hashed else None
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append data to the file."""
        self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the contents in hex; "" if they are not hashed."""
        return "" if self._digest is None else self._digest.hexdigest()


class BundleWriter:
    """Writes and hashes the files of a bundle in an existing directory, see `new_directory`."""

    _hashes = True

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._records: dict[str, FileRecord] = {}

    @property
    def records(self) -> tuple[FileRecord, ...]:
        """The records of the files written so far, sorted by path."""
        return tuple(self._records[name] for name in sorted(self._records))

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[HashedFile]:
        """Open a file for writing; it is recorded when the block ends."""
        with (self.directory / name).open("wb") as file:
            hashed = HashedFile(file, hashed=self._hashes)
            yield hashed
        self._records[name] = FileRecord(name, hashed.size, hashed.sha256)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""
        with self.open(name) as file:
            file.write(data)

    def copy(self, source: Path, name: str) -> None:
        """Copy a file into the bundle."""
        with source.open("rb") as original, self.open(name) as file:
            while chunk := original.read(_CHUNK):
                file.write(chunk)

    def copy_tokenizers(self, bundle: Bundle) -> None:
        """Copy the tokenizers of another bundle, if it has any."""
        tokenizers = bundle.manifest.tokenizers
        for name in () if tokenizers is None else tokenizers.files:
            self.copy(bundle.path(name), name)

    def finish(self, manifest: Manifest) -> Bundle:
        """Write the manifest with the records of all files, sorted by path."""
        manifest = dataclasses.replace(manifest, files=self.records)
        write_manifest(manifest, self.directory)
        return Bundle(self.directory, manifest)


class ScratchWriter(BundleWriter):
    """Writes an intermediate bundle for this process only, without hashes and manifest."""

    _hashes = False

    def finish(self, manifest: Manifest) -> Bundle:
        """Return the bundle."""
        return Bundle(self.directory, manifest)


def _not_of_bundle(directory: Path) -> Iterator[Path]:
    """Yield what a directory has that Dragoman writes in no bundle."""
    ours = set[str]()
    with contextlib.suppress(FileError, LookupError, TypeError):
        manifest = read_json_object(directory / MANIFEST_FILE)
        if manifest["schema_version"] and manifest["graphs"]:
            ours = {MANIFEST_FILE, SIGNATURE_FILE, *(file["path"] for file in manifest["files"])}
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix().removesuffix(".partial")
        if name not in ours and (path.is_symlink() or not path.is_dir()):
            yield path


@contextlib.contextmanager
def new_directory(
    destination: Path,
    *,
    overwrite: bool = False,
    kind: str = "bundle",
    foreign: Callable[[Path], Iterator[Path]] = _not_of_bundle,
) -> Iterator[Path]:
    """Yield a directory that becomes `destination` if the block ends without an exception.

    Otherwise, or if the process dies, `destination` is unchanged. The partial directory lies next
    to it, and is removed unless the process is killed. Of a link, what it leads to is replaced.

    Args:
        foreign: yields what a directory of that kind has not, which is not replaced
    """
    check_destination(destination, overwrite, kind, foreign)
    destination = Path(os.path.realpath(destination))
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = destination.parent / f".{destination.name}.partial-{secrets.token_hex(4)}"
        old = partial.with_name(partial.name[:-1] + "~")  # no longer a name
        partial.mkdir()
    except OSError as error:
        raise DragomanError(
            f"cannot write {destination}: {error.strerror} ({error.filename})"
        ) from error
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        check_destination(destination, overwrite, kind, foreign)
        if overwrite and destination.exists():
            destination.rename(old)
        partial.rename(destination)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise DragomanError(
            f"cannot write {destination}: {error.strerror}; nothing was left behind"
        ) from error
    finally:
        if old.exists() and not destination.exists():
            old.rename(destination)
        for path in (partial, old):
            shutil.rmtree(path, ignore_errors=True)


def record_parity(bundle: Bundle, parity: Parity) -> None:
    """Replace the parity record in a bundle's manifest; of engines, that of their own outputs."""
    path = bundle.directory / MANIFEST_FILE
    data = read_json_object(path)
    engines = isinstance(bundle.manifest.executable, TensorRTEngines)
    record = data["executable"] if engines else data
    record["parity"] = to_plain(parity, brief=True)
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    _write_manifest(text, bundle.directory)


def add_known_answers(known: KnownAnswers, manifest: Manifest, directory: Path) -> Manifest:
    """Write the known answers of a bundle; return its manifest with their record."""
    files = BundleWriter(directory)
    files.write(KNOWN_ANSWERS_FILE, known.to_json())
    (record,) = files.records
    others = (file for file in manifest.files if file.path != record.path)
    listed = tuple(sorted((*others, record), key=lambda file: file.path))
    return dataclasses.replace(manifest, files=listed)


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Write or replace the manifest in one step."""
    _write_manifest(manifest.to_json(), directory)


def _write_manifest(text: str, directory: Path) -> None:
    partial = directory / (MANIFEST_FILE + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(directory / MANIFEST_FILE)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise DragomanError(
            f"cannot write {directory / MANIFEST_FILE}: {error.strerror or error}"
        ) from error


def check_destination(
    destination: Path,
    overwrite: bool,
    kind: str = "bundle",
    foreign: Callable[[Path], Iterator[Path]] = _not_of_bundle,
) -> None:
    """Check that a destination can be written: it is new or, to `overwrite`, of the same kind."""
    refuse_existing(destination, overwrite)
    if not os.path.lexists(destination):
        return
    for found in foreign(destination) if destination.is_dir() else [destination]:
        raise DragomanError(f"{found} is not part of a {kind}: {destination} will not be replaced")
