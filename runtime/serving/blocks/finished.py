"""The blocks that are finished, in a folder beside the output until all are."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.strict_json import parse_json

from ...decoding.options import GenerationOptions
from ...format.manifest import MANIFEST_FILE
from .decoder import Decoded, Form
from .source import Block, Source

WORK_FILE = "work.json"
CHOICES_OF_SPEED = ("max_batch_size", "max_batch_tokens")
"""Options that change no output: an interrupted run may go on with others."""


@dataclass(frozen=True)
class Joined:
    """What a file of outputs consists of.

    Attributes:
        rejected: why lines could not be decoded, by their number in the file, from 1; their outputs
            are empty
    """

    lines: int
    rejected: Mapping[int, str]


def description_of(
    source: Source, block_lines: int, bundle: Path, options: GenerationOptions, form: Form
) -> dict[str, Any]:
    """What decides which outputs there will be. Where files are does not."""
    settings = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name not in CHOICES_OF_SPEED
    }
    return {
        "source": source.sha256,
        "lines of a block": block_lines,
        "bundle": hashlib.sha256((bundle / MANIFEST_FILE).read_bytes()).hexdigest(),
        "options": repr(sorted(settings.items())),
        "form": form,
    }


class Finished:
    """The folder of an output, made if there is none.

    Args:
        output: the file that there will be
        description: what is being done; see `description_of`

    Raises:
        DragomanError: the folder is of other work.
    """

    def __init__(self, output: Path, description: Mapping[str, Any]) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.blocks")
        self.folder.mkdir(parents=True, exist_ok=True)
        work = self.folder / WORK_FILE
        if not work.exists():
            _write(work, json.dumps(description))
            return
        found = _object(work)
        other = [name for name, value in description.items() if found.get(name) != value]
        if other:
            raise DragomanError(
                f"{self.folder}: expected what an interrupted run of the same work left, found "
                f"another {', another '.join(other)}: repeat that run, or remove the folder"
            )

    def missing(self, source: Source) -> list[Block]:
        """The blocks that are not finished."""
        return [block for block in source.blocks if self._read(block) is None]

    def add(self, block: Block, decoded: Decoded) -> None:
        """Keep a block. However this ends, it is kept as a whole or not at all."""
        _write(self._path(block), json.dumps(dataclasses.asdict(decoded), ensure_ascii=False))

    def join(self, source: Source) -> Joined:
        """Write the output, all of it at once, and remove the folder.

        Raises:
            DragomanError: a block is missing.
        """
        rejected: dict[int, str] = {}
        whole = self.folder / "output"
        with whole.open("w", encoding="utf-8", newline="\n") as file:
            for block in source.blocks:
                decoded = self._read(block)
                if decoded is None:
                    raise DragomanError(f"{self._path(block)}: was there, and is not any more")
                file.writelines(f"{line}\n" for line in decoded.lines)
                for index, reason in decoded.rejected.items():
                    rejected[block.first_line + index] = reason
            _to_disk(file.fileno())
        whole.replace(self.output)
        shutil.rmtree(self.folder)
        return Joined(source.lines, rejected)

    def _path(self, block: Block) -> Path:
        return self.folder / f"{block.index:08}.json"

    def _read(self, block: Block) -> Decoded | None:
        """A block; None: it is not there as a whole."""
        try:
            values = _object(self._path(block))
        except (DragomanError, FileNotFoundError):
            return None
        lines, rejected = values.get("lines"), values.get("rejected")
        if not isinstance(lines, list) or not isinstance(rejected, dict):
            return None
        if len(lines) != block.lines:
            return None
        return Decoded(lines, dict(_numbered(rejected)))


def _numbered(rejected: dict[str, str]) -> Iterator[tuple[int, str]]:
    """JSON's keys are texts."""
    return ((int(index), reason) for index, reason in rejected.items())


def _object(path: Path) -> dict[str, Any]:
    """
    Raises:
        DragomanError: it is no JSON object.
        FileNotFoundError: there is none.
    """
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError, too
        raise DragomanError(f"{path}: expected JSON: {error}") from error
    if not isinstance(values, dict):
        raise DragomanError(f"{path}: expected a JSON object")
    return values


def _write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    beginning = path.with_suffix(".new")
    with beginning.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        _to_disk(file.fileno())
    beginning.replace(path)


def _to_disk(descriptor: int) -> None:
    os.fsync(descriptor)
