"""From a folder to parts: a tar, compressed by xz, cut by bytes."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

LARGEST_DICTIONARY = 256 << 20
"""How far back xz looks for repetitions, at most: libraries of CUDA kernels repeat themselves over
hundreds of MB. Compressing takes eleven times that memory, decompressing as much as that."""


class Part(NamedTuple):
    """A piece of a pack: a file of the kit."""

    file: str
    size: int
    sha256: str


class Packed(NamedTuple):
    """A pack: the parts, one after the other."""

    size: int
    sha256: str
    parts: tuple[Part, ...]


class PartWriter:
    """A stream that is written to files `NAME.1`, `NAME.2` and so on, of at most `part_bytes`."""

    def __init__(self, directory: Path, name: str, part_bytes: int) -> None:
        self._directory, self._name, self._part_bytes = directory, name, part_bytes
        self._parts: list[Part] = []
        self._whole, self._size = hashlib.sha256(), 0
        self._part, self._hash = bytearray(), hashlib.sha256()

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        self._whole.update(view)
        self._size += len(view)
        written = len(view)
        while len(view):
            room = self._part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]
            if len(self._part) == self._part_bytes:
                self._end_part()
        return written

    def packed(self) -> Packed:
        """Write the last part; what has been written in all."""
        if self._part:
            self._end_part()
        return Packed(self._size, self._whole.hexdigest(), tuple(self._parts))

    def _end_part(self) -> None:
        file = f"{self._name}.{len(self._parts) + 1}"
        (self._directory / file).write_bytes(self._part)
        digest = hashlib.sha256(self._part).hexdigest()
        self._parts.append(Part(file, len(self._part), digest))
        self._part = bytearray()


def pack(tree: Path, directory: Path, name: str, part_bytes: int) -> Packed:
    """Write a folder as parts `NAME.tar.xz.1` and so on.

    Machine code is turned so that equal calls look equal (the x86 filter) before it is compressed.

    Args:
        tree: files and folders; links are not allowed
        directory: an existing one
    """
    files = {str(p.relative_to(tree)): p for p in tree.rglob("*") if not p.is_dir()}
    size = sum(path.stat().st_size for path in files.values())
    dictionary = min(LARGEST_DICTIONARY, max(1 << 16, size))
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary},
    ]
    writer = PartWriter(directory, f"{name}.tar.xz", part_bytes)
    stream: Any = writer
    with (
        lzma.LZMAFile(stream, "wb", check=lzma.CHECK_SHA256, filters=filters) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(files.items()):
            assert not path.is_symlink()
            entry = archive.gettarinfo(path, name)
            entry.mode = 0o644
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return writer.packed()
