"""A bundle on disk; reading it checks everything."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import (
    SETTINGS_BYTES,
    FileError,
    read_regular,
    user_cache,
    write_whole,
)

from .contract import SHORTLIST_GRAPHS
from .known_answers import (
    KNOWN_ANSWERS_FILE,
    LARGEST_FILE,
    KnownAnswers,
    parse_known_answers,
    record_of,
)
from .manifest import MANIFEST_FILE, BundleError, FileRecord, Manifest, OnnxGraphs
from .onnx_graph import LARGEST_GRAPH, WEIGHTS_FILE, graph_problems
from .validation import manifest_from_json

LARGE = 2**26
"""Bytes from which a file is remembered: a tenth of a second for its SHA-256."""
SETTLED = 2.0
"""Seconds after which a file that is written again has another time, on all file systems."""
MOST_NOTES = 1000

_CHANGED = "its SHA-256 is not the recorded one: the file was changed"


@dataclass(frozen=True)
class Bundle:
    """A bundle's directory and its manifest."""

    directory: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Return the path of a file of the bundle."""
        return self.directory / name

    def graph_path(self, graph: str) -> Path:
        """Return the path of a graph."""
        return self.directory / self.manifest.graphs[graph].file

    @property
    def size(self) -> int:
        """The size of all files but the manifest, in bytes."""
        return sum(file.size for file in self.manifest.files)


def read_bundle(directory: str | Path | Bundle, *, remembered: bool = False) -> Bundle:
    """Read a bundle and check its manifest, the size and SHA-256 of every file, and the graphs.

    Graphs have only operators of `onnx_graph.OPERATORS`, and no weights outside the bundle.

    Args:
        directory: the bundle's directory; a bundle that was read before is returned
        remembered: whether the SHA-256 of a large file is not computed again if it was right on
            this machine and the file has not been written since, by its inode and times

    Raises:
        BundleError: lists everything that is wrong.
        DragomanError: `directory` is not a path.
    """
    if isinstance(directory, Bundle):
        return directory
    where: object = directory
    if not isinstance(where, str | os.PathLike):
        raise DragomanError(f"expected the path of a bundle, found {shown(where)}")
    directory = Path(directory)
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
    problems = [
        problem
        for file in manifest.files
        for problem in _file_problems(directory, file, manifest, remembered=remembered)
    ]
    if problems:
        raise BundleError(str(directory), problems)
    return Bundle(directory, manifest)


def without_shortlist(bundle: Bundle) -> Bundle:
    """Return a bundle without the graphs of its shortlist, if it has one."""
    if bundle.manifest.shortlist is None:
        return bundle
    graphs = {
        name: spec for name, spec in bundle.manifest.graphs.items() if name not in SHORTLIST_GRAPHS
    }
    manifest = dataclasses.replace(bundle.manifest, graphs=graphs, shortlist=None)
    return dataclasses.replace(bundle, manifest=manifest)


def read_known_answers(bundle: Bundle) -> KnownAnswers | None:
    """Read the known answers of a bundle; None: it has none."""
    if record_of(bundle.manifest) is None:
        return None
    path, problems = bundle.path(KNOWN_ANSWERS_FILE), list[str]()
    try:
        data = read_regular(path, LARGEST_FILE)
    except FileError as error:
        raise BundleError(str(path), [error.problem]) from error
    known = parse_known_answers(data, bundle.manifest, problems)
    if problems:
        raise BundleError(str(path), problems)
    return known


def _file_problems(
    directory: Path, file: FileRecord, manifest: Manifest, *, remembered: bool
) -> list[str]:
    relative = PurePosixPath(file.path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        return [f"{file.path}: expected a path inside the bundle"]
    path = directory / relative
    try:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(directory)):
            return [f"{file.path}: expected a file inside the bundle, found a link to {real}"]
        size = path.stat().st_size
        if not path.is_file():
            return [f"{file.path}: expected a file"]
        if size != file.size:
            return [f"{file.path}: expected {file.size} bytes, found {size}"]
        is_graph = _is_graph(relative, manifest)
        if is_graph or file.path == KNOWN_ANSWERS_FILE:
            found = _content_problems(path, file, manifest, is_graph=is_graph)
            return [f"{file.path}: {problem}" for problem in found]
        if not _has_sha256(path, file.sha256, remembered=remembered):
            return [f"{file.path}: {_CHANGED}"]
    except FileNotFoundError:
        return [f"{file.path}: missing"]
    except OSError as error:
        return [f"{file.path}: cannot be read: {error.strerror}"]
    except ValueError as error:  # NUL or a lone surrogate
        return [f"{shown(file.path)}: expected a path inside the bundle: {error}"]
    return []


def _is_graph(path: PurePosixPath, manifest: Manifest) -> bool:
    return isinstance(manifest.executable, OnnxGraphs) and any(
        PurePosixPath(graph.file) == path for graph in manifest.graphs.values()
    )


def _content_problems(
    path: Path, file: FileRecord, manifest: Manifest, *, is_graph: bool
) -> list[str]:
    most, what = (LARGEST_GRAPH, "a graph of ") if is_graph else (LARGEST_FILE, "")
    if file.size > most:
        return [f"expected {what}at most {most} bytes, found {file.size}"]
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return [_CHANGED]
    if is_graph:
        stored = str(PurePosixPath(file.path).with_name(WEIGHTS_FILE))
        weights = next((other.size for other in manifest.files if other.path == stored), None)
        return graph_problems(data, weights)
    problems: list[str] = []
    parse_known_answers(data, manifest, problems)
    return problems


def _has_sha256(path: Path, expected: str, *, remembered: bool) -> bool:
    note = _note(path, expected)
    if remembered and note is not None:
        with suppress(OSError):
            if note.is_file():
                return True
    started = time.time()
    with path.open("rb") as file:
        right = hashlib.file_digest(file, "sha256").hexdigest() == expected
    # The times of a file that is still being written may not tell a later change.
    if right and note is not None and note == _note(path, expected):
        with suppress(DragomanError, OSError):
            if started - path.stat().st_ctime > SETTLED:
                write_whole(note, Path.touch)
                notes = sorted(note.parent.iterdir(), key=lambda other: other.stat().st_mtime)
                for old in notes[:-MOST_NOTES]:
                    old.unlink()
    return right


def _note(path: Path, expected: str) -> Path | None:
    """Return the path in the cache that exists if the SHA-256 of this large file was right.

    Whoever changes a file changes its time of status change, which programs cannot set.
    """
    found = path.stat()
    if found.st_size < LARGE:
        return None
    of = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, expected)
    name = hashlib.sha256(repr(of).encode()).hexdigest()[:32]
    return user_cache("checked-files", name)
