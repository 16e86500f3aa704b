"""Decodes a large file of lines in blocks, which are saved until the output is complete."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.files.regular_files import write_whole
from dragoman.files.strict_json import parse_json
from dragoman.files.text_lines import decoded_line, source_of
from dragoman.progress import Progress
from dragoman.settings.generation import GenerationOptions

from ..arguments import check_able, with_prefix
from ..decoding.results import Result, json_line, text_line
from ..format.bundle import read_bundle
from ..format.manifest import MANIFEST_FILE, Manifest
from ..loading import load
from ..model import Model

OutputFormat = Literal["text", "json"]
"""What a line of output is: the best output, or an object with everything, as of
`dragoman run --json`."""
WORK_FILE = "work.json"
SPEED_OPTIONS = ("max_batch_size", "max_batch_tokens")
"""Options that change no output: an interrupted run may continue with others."""


@dataclass(frozen=True)
class Block:
    """A block of lines that are decoded together."""

    index: int
    """Number of the block in the file, from 0."""
    first_line: int
    """Number of its first line in the file, from 1."""
    lines: int
    offset: int
    size: int
    """`offset` and `size`: position in the file, in bytes."""


@dataclass(frozen=True)
class LineFile:
    """A file of lines, split into blocks."""

    path: Path
    sha256: str
    blocks: tuple[Block, ...]
    prefixes: LineFile | None = None
    """A file with the prefix of each line, split alike; None: no such file."""

    @property
    def lines(self) -> int:
        """The number of lines."""
        return sum(block.lines for block in self.blocks)

    def read(self, block: Block) -> bytes:
        """Read the lines of a block."""
        with self.path.open("rb") as file:
            file.seek(block.offset)
            data = file.read(block.size)
        if len(data) != block.size:
            raise DragomanError(f"{self.path}: was changed while it was decoded: lines are missing")
        return data

    def inputs(self, block: Block) -> tuple[bytes, bytes | None]:
        """Read the lines of a block and their prefixes."""
        if self.prefixes is None:
            return self.read(block), None
        return self.read(block), self.prefixes.read(self.prefixes.blocks[block.index])


def split(path: Path, block_lines: int, prefixes: Path | None = None) -> LineFile:
    """Split a file into blocks, in one pass.

    Args:
        prefixes: see `LineFile`

    Raises:
        DragomanError: a path is not a file, or there is not one prefix for each line.
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
    of_lines = None if prefixes is None else split(prefixes, block_lines)
    whole = LineFile(path, digest.hexdigest(), tuple(blocks), of_lines)
    if of_lines is not None and of_lines.lines != whole.lines:
        raise DragomanError(
            f"{prefixes}: expected a prefix for each of the {whole.lines} lines of {path}, found "
            f"{of_lines.lines}"
        )
    return whole


def lines_of(data: bytes) -> list[bytes]:
    """Split a block into lines, without line ends."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


@dataclass
class DecodedBlock:
    """The output for a block."""

    lines: list[str] = field(default_factory=list)
    """One output per input line."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Reasons of rejected lines, by index in the block; their outputs are empty."""


class BlockDecoder:
    """Decodes blocks with a model.

    The first method that needs the model loads it.
    """

    def __init__(
        self,
        bundle: Path,
        options: GenerationOptions,
        output_format: OutputFormat,
        threads: int | None,
        backend: str | None,
        device: str | None = None,
    ) -> None:
        self._load = partial(load, bundle, threads=threads, backend=backend, device=device)
        self._options = options
        self._line: Callable[[Result], str] = json_line if output_format == "json" else text_line

    @cached_property
    def _model(self) -> Model:
        return self._load()

    def check(self) -> None:
        """Load the model, and check the options."""
        self._model.generate([], self._options)

    def decode(self, data: bytes, prefixes: bytes | None = None) -> DecodedBlock:
        """Decode the lines of a block.

        Args:
            prefixes: a line with the prefix of each of them; None: that of the options
        """
        manifest = self._model.manifest
        takes_text = manifest.tokenizers is not None or manifest.speech is not None
        decoded = DecodedBlock()
        sources: list[Any] = [
            source_of(decoded_line(line), takes_text=takes_text) for line in lines_of(data)
        ]
        options: list[Any] = [self._options] * len(sources)
        if prefixes is not None:
            lines = map(decoded_line, lines_of(prefixes))
            options = [with_prefix(self._options, line, takes_text=takes_text) for line in lines]
        for index, own in enumerate(options):
            if isinstance(own, DragomanError):
                sources[index] = own
        good = [
            index for index, source in enumerate(sources) if not isinstance(source, DragomanError)
        ]
        results = iter(self._model.generate([sources[i] for i in good], [options[i] for i in good]))
        for index, source in enumerate(sources):
            if isinstance(source, DragomanError):
                text = "" if takes_text else None
                result = Result(text, (), 0.0, "rejected", str(source))
            else:
                result = next(results)
            if result.error is not None:
                decoded.rejected[index] = result.error
            decoded.lines.append(self._line(result))
        return decoded


def check_format(
    manifest: Manifest, options: GenerationOptions, output_format: OutputFormat
) -> None:
    """Check that each output is one line."""
    check_able(manifest, "generate")
    if output_format == "json":
        return
    problem = "timestamps: expected false, found true" if options.timestamps else ""
    if options.num_return_sequences > 1:
        problem = f"num_return_sequences: expected 1, found {options.num_return_sequences}"
    if problem:
        raise DragomanError(
            f"{problem}: text has one line of output for each line of input; use JSON"
        )


@dataclass(frozen=True)
class DecodedFile:
    """A file of outputs."""

    lines: int
    rejected: Mapping[int, str]
    """Reasons of rejected lines, by line number from 1; their outputs are empty."""


def describe_work(
    source: LineFile,
    block_lines: int,
    bundle: Path,
    options: GenerationOptions,
    output_format: OutputFormat,
) -> dict[str, Any]:
    """Describe what determines the outputs; the location of files does not."""
    settings = dataclasses.asdict(options)
    for name in SPEED_OPTIONS:
        del settings[name]
    return {
        "source": source.sha256,
        "prefixes": None if source.prefixes is None else source.prefixes.sha256,
        "lines of a block": block_lines,
        "bundle": hashlib.sha256((bundle / MANIFEST_FILE).read_bytes()).hexdigest(),
        "options": repr(sorted(settings.items())),
        "form": output_format,
    }


class FinishedBlocks:
    """The folder of an output's finished blocks, OUTPUT.blocks."""

    def __init__(self, output: Path, description: Mapping[str, Any]) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.blocks")
        self.folder.mkdir(parents=True, exist_ok=True)
        work = self.folder / WORK_FILE
        if not work.exists():
            _write(work, json.dumps(description))
            return
        found = _read_object(work)
        other = [name for name, value in description.items() if found.get(name) != value]
        if other:
            raise DragomanError(
                f"{self.folder}: expected what an interrupted run of the same work left, found "
                f"another {', another '.join(other)}: repeat that run, or remove the folder"
            )

    def missing(self, source: LineFile) -> list[Block]:
        """Return the blocks that are not finished."""
        return [block for block in source.blocks if self._read(block) is None]

    def add(self, block: Block, decoded: DecodedBlock) -> None:
        """Save a block atomically."""
        _write(self._path(block), json.dumps(dataclasses.asdict(decoded), ensure_ascii=False))

    def write_output(self, source: LineFile) -> DecodedFile:
        """Write the output atomically, and remove the folder."""
        rejected: dict[int, str] = {}

        def write(unfinished: Path) -> None:
            with unfinished.open("w", encoding="utf-8", newline="\n") as file:
                for block in source.blocks:
                    decoded = self._read(block)
                    if decoded is None:
                        raise DragomanError(
                            f"{self._path(block)}: expected a finished block, found none: it was "
                            "removed; repeat the run"
                        )
                    file.writelines(f"{line}\n" for line in decoded.lines)
                    for index, reason in decoded.rejected.items():
                        rejected[block.first_line + index] = reason

        write_whole(self.output, write, failures=())
        shutil.rmtree(self.folder)
        return DecodedFile(source.lines, rejected)

    def _path(self, block: Block) -> Path:
        return self.folder / f"{block.index:08}.json"

    def _read(self, block: Block) -> DecodedBlock | None:
        try:
            values = _read_object(self._path(block))
        except (DragomanError, FileNotFoundError):
            return None
        lines, rejected = values.get("lines"), values.get("rejected")
        if not isinstance(lines, list) or not isinstance(rejected, dict):
            return None
        if len(lines) != block.lines:
            return None
        return DecodedBlock(lines, {int(index): reason for index, reason in rejected.items()})


def decode_file(
    bundle: Path,
    source: Path,
    output: Path,
    options: GenerationOptions,
    decode_blocks: Callable[[LineFile, Sequence[Block]], Iterator[tuple[Block, DecodedBlock]]],
    *,
    block_lines: int,
    output_format: OutputFormat,
    overwrite: bool,
    progress: Progress,
    prefixes: Path | None = None,
) -> DecodedFile:
    """Decode a file line by line into an output file with the same order of lines.

    Repeating an interrupted call resumes it.

    Args:
        decode_blocks: decodes blocks and yields each when finished, in any order
        prefixes: see `split`

    Raises:
        DragomanError: the input, the output or an option is invalid, or the folder of blocks
            belongs to other work.
    """
    refuse_existing(output, overwrite)
    refuse_unwritable_file(output)
    manifest = read_bundle(bundle).manifest
    check_format(manifest, options, output_format)
    if prefixes is not None and manifest.speech is not None:
        raise DragomanError("prefixes: for text models; a speech model takes no prefix")
    progress.stage("reading the file")
    lines = split(source, block_lines, prefixes)
    description = describe_work(lines, block_lines, bundle, options, output_format)
    finished = FinishedBlocks(output, description)
    missing = finished.missing(lines)
    if missing:
        progress.stage("decoding lines")
        done = lines.lines - sum(block.lines for block in missing)
        for block, decoded in decode_blocks(lines, missing):
            finished.add(block, decoded)
            done += block.lines
            progress.advance(done, lines.lines)
    return finished.write_output(lines)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # includes UnicodeDecodeError
        raise DragomanError(f"{path}: expected JSON: {error}") from error
    if not isinstance(values, dict):
        raise DragomanError(f"{path}: expected a JSON object")
    return values


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda unfinished: unfinished.write_text(text, "utf-8"), failures=())
