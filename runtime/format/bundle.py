"""A bundle on disk, read with everything checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dragoman.regular_files import SETTINGS_BYTES, FileError, read_regular

from .manifest import MANIFEST_FILE, BundleError, FileRecord, Manifest
from .validation import manifest_from_json


@dataclass(frozen=True)
class Bundle:
    """A directory and what its manifest says."""

    directory: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        return self.directory / name

    def graph_path(self, graph: str) -> Path:
        """The file of a graph."""
        return self.directory / self.manifest.graphs[graph].file

    @property
    def size(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(file.size for file in self.manifest.files)


def read_bundle(directory: Path) -> Bundle:
    """Read a bundle and check it: the manifest, and presence, size and SHA-256 of every file.

    Raises:
        BundleError: lists everything that is wrong.
    """
    manifest_path = directory / MANIFEST_FILE
    try:
        text = read_regular(manifest_path, SETTINGS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise BundleError(str(manifest_path), [f"expected UTF-8 text: {error}"]) from error
    except FileError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            found = f"no {MANIFEST_FILE} in it" if directory.exists() else "no such directory"
            raise BundleError(str(directory), [f"expected a bundle, found {found}"]) from error
        raise BundleError(str(manifest_path), [error.problem]) from error
    manifest = manifest_from_json(text, str(manifest_path))
    problems = [p for file in manifest.files for p in _file_problems(directory, file)]
    if problems:
        raise BundleError(str(directory), problems)
    return Bundle(directory, manifest)


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
