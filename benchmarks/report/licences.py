"""The licence files beside a bundle and in its checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dragoman.regular_files import FileError, read_regular

from .contents import Licence

Place = Literal["bundle", "checkpoint"]

NAME = re.compile(r"(licen[cs]e|copying|notice)(?![a-z])", re.IGNORECASE)
FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)^---\s*$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^licen[cs]e:\s*['\"]?([^'\"\n]+)", re.MULTILINE)
"""In the front matter of a README, as the Hugging Face Hub has it."""
LARGEST = 1 << 18
"""Bytes of a file that is read."""


def licences_in(directory: Path, place: Place) -> tuple[Licence, ...]:
    """What the files of a directory say about licences; those that cannot be read say nothing."""
    return tuple(_licences(directory, place))


def _licences(directory: Path, place: Place) -> Iterator[Licence]:
    for path in sorted(directory.iterdir()):
        data = _read(path) if NAME.match(path.name) else None
        if data is not None:
            text = data.decode(errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            yield _licence(place, path, lines[0] if lines else "", data, text)
    readme = directory / "README.md"
    data = _read(readme)
    matter = None if data is None else FRONT_MATTER.match(data.decode(errors="replace"))
    named = None if matter is None else NAMED.search(matter[1])
    if named is not None and data is not None:
        yield _licence(place, readme, named[1].strip(), data, "")


def _licence(place: Place, path: Path, summary: str, data: bytes, text: str) -> Licence:
    return Licence(place, path.name, summary, hashlib.sha256(data).hexdigest(), text)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path, LARGEST)
    except FileError:
        return None
