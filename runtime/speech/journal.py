"""Keeps transcripts in a file while they are made, for a later call to go on.

The file has a line of JSON for the bundle and the options, then one for each decoded window.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dragoman.errors import DragomanError, shown
from dragoman.files.strict_json import parse_json
from dragoman.settings.generation import GenerationOptions

from ..format.manifest import Manifest
from ..format.plain_data import Problems, from_plain, to_plain
from .recording import Recording, RecordingState

VERSION = 3
WITHOUT_EFFECT = frozenset({"max_batch_size", "max_batch_tokens"})
"""Options that do not change transcripts."""


class JournalError(DragomanError):
    """A journal cannot be used."""


@dataclass(frozen=True)
class Entry:
    """A line of a journal."""

    recording: str
    """SHA-256 of the recording, in hex, and its number if it comes again in the call."""
    part: int
    """Index of the part of the recording."""
    state: RecordingState


class Journal:
    """An open journal, which no other process can use.

    Raises:
        JournalError: the file is not a journal of this bundle and options, is in use, or cannot be
            written.
    """

    def __init__(self, path: Path, manifest: Manifest, options: GenerationOptions) -> None:
        self._path = path
        self._states: dict[tuple[str, int], list[RecordingState]] = {}
        self._opened = Counter[str]()
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error
        try:
            _lock(self._file)
            self._read(_heading(manifest, options))
        except BlockingIOError as error:
            self.close()
            raise JournalError(f"{path}: expected a free journal, found it in use") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def of(self, source: Any, parts: Sequence[Recording]) -> RecordingJournal:
        """Let the parts of a recording go on, and return their journal."""
        name = _digest_of(source)
        self._opened[name] += 1
        if self._opened[name] > 1:  # the same recording, once more in this call
            name = f"{name}-{self._opened[name]}"
        for number, part in enumerate(parts):
            for state in self._states.get((name, number), ()):
                part.restore(state)
        return RecordingJournal(self, name, parts)

    def write(self, entry: Entry) -> None:
        """Append a line."""
        self._append(to_plain(entry))

    def _append(self, values: Mapping[str, Any]) -> None:
        line = (json.dumps(values, ensure_ascii=False) + "\n").encode()
        try:
            if self._file.write(line) < len(line):  # the rest does not fit
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error

    def _read(self, heading: Mapping[str, Any]) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data.rfind(b"\n") + 1
        if data and (not whole or not data.startswith(b'{"journal": ')):
            raise JournalError(f"{self._path}: expected a journal of `run --resume`")
        lines = data[:whole].splitlines()
        if not lines:
            self._append(heading)
            return
        for name, value in _parsed(self._path, 1, lines[0]).items():
            if heading.get(name) != value:
                raise JournalError(
                    f"{self._path}: expected a journal with the {name} of this call, "
                    f"{shown(heading.get(name))}, found {shown(value)}"
                )
        for number, line in enumerate(lines[1:], 2):
            problems = Problems()
            entry = from_plain(Entry, _parsed(self._path, number, line), "line", problems)
            if entry is None:
                raise JournalError(f"{self._path}, line {number}: {problems[0]}")
            self._states.setdefault((entry.recording, entry.part), []).append(entry.state)
        os.ftruncate(self._file.fileno(), whole)  # a line that was not finished


class RecordingJournal:
    """Adds the windows of a recording to a journal."""

    def __init__(self, journal: Journal, recording: str, parts: Sequence[Recording]) -> None:
        self._journal, self._recording = journal, recording
        self._written = [len(part.segments) for part in parts]

    def add(self, number: int, part: Recording) -> None:
        """Add the last window of a part."""
        state = part.state(self._written[number])
        self._journal.write(Entry(self._recording, number, state))
        self._written[number] = len(part.segments)


def _lock(file: BinaryIO) -> None:
    with suppress(ModuleNotFoundError):  # on Windows
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _heading(manifest: Manifest, options: GenerationOptions) -> dict[str, Any]:
    files = repr([(file.path, file.sha256) for file in manifest.files])
    chosen = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in WITHOUT_EFFECT and getattr(options, field.name) != field.default
    }
    heading = {
        "journal": VERSION,
        "bundle": hashlib.sha256(files.encode()).hexdigest(),
        "options": chosen,
    }
    found: dict[str, Any] = json.loads(json.dumps(heading, default=str))
    return found


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        values = parse_json(line.decode())
    except ValueError as error:
        raise JournalError(f"{path}, line {number}: expected JSON: {error}") from error
    if not isinstance(values, dict):
        raise JournalError(f"{path}, line {number}: expected an object, found {shown(values)}")
    return values


def _digest_of(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        try:
            with Path(source).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise JournalError(f"{os.fspath(source)}: {error.strerror}") from error
    data = source if isinstance(source, bytes) else np.ascontiguousarray(source).data
    return hashlib.sha256(data).hexdigest()
