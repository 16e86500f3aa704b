"""A file of lines -> blocks of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError


@dataclass(frozen=True)
class Block:
    """Lines that are decoded together.

    Attributes:
        index: of the block in the file, from 0
        first_line: its number in the file, from 1
        lines: how many there are
        offset, size: where they are, in bytes
    """

    index: int
    first_line: int
    lines: int
    offset: int
    size: int


@dataclass(frozen=True)
class Source:
    """A file, as it was when it was split.

    Attributes:
        sha256: of its contents
    """

    path: Path
    sha256: str
    blocks: tuple[Block, ...]

    @property
    def lines(self) -> int:
        return sum(block.lines for block in self.blocks)

    def read(self, block: Block) -> bytes:
        """The lines of a block.

        Raises:
            DragomanError: the file is shorter than it was.
        """
        with self.path.open("rb") as file:
            file.seek(block.offset)
            data = file.read(block.size)
        if len(data) != block.size:
            raise DragomanError(f"{self.path}: was changed while it was decoded: lines are missing")
        return data


def split(path: Path, block_lines: int) -> Source:
    """Read a file once, to find its blocks.

    Args:
        block_lines: lines of each block but the last, which may have fewer

    Raises:
        DragomanError: it is no file that can be read.
    """
    if not path.is_file():
        found = "something else" if path.exists() else "none"
        raise DragomanError(f"{path}: expected a file of lines, found {found}")
    digest, blocks = hashlib.sha256(), list[Block]()
    offset = begun = lines = 0

    def end_block() -> None:
        first = len(blocks) * block_lines + 1
        blocks.append(Block(len(blocks), first, lines, begun, offset - begun))

    with path.open("rb") as file:
        for line in file:
            digest.update(line)
            offset, lines = offset + len(line), lines + 1
            if lines == block_lines:
                end_block()
                begun, lines = offset, 0
    if lines:
        end_block()
    return Source(path, digest.hexdigest(), tuple(blocks))


def lines_of(data: bytes) -> list[bytes]:
    """The lines of a block, without their ends."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
