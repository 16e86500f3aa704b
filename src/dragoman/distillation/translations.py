"""The data of a distillation, and the teacher's translations of its sources.

A student learns the outputs of its teacher's beam search in place of the references (Kim & Rush
2016, section 3.2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.files.regular_files import write_whole
from dragoman.progress import Progress
from dragoman.reference_model.recipes import (
    RECIPES,
    Cleaning,
    Corpus,
    Data,
    Example,
    PairFiles,
    Recipe,
    read_lines,
    write_examples,
)
from dragoman.reference_model.recipes.corpora import Corpora
from dragoman.reference_model.recipes.translation import load_pairs
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.serving.file_blocks import (
    Block,
    BlockDecoder,
    DecodedBlock,
    LineFile,
    decode_file,
    describe_work,
    split,
)
from dragoman.settings.generation import GenerationOptions

BLOCK_LINES = 512
"""The number of sources that are translated between two saves."""


class DataFiles:
    """The files of a distillation's data, in its directory.

    Attributes:
        sources: the texts that the teacher translates, one per line
        translations: pairs of sources and the teacher's translations
        originals: pairs of sources and their references
        dev, test: pairs to validate and to judge on
    """

    def __init__(self, directory: Path) -> None:
        self.sources = directory / "sources.txt"
        self.translations, self.originals, self.dev, self.test = (
            directory / f"{name}.tsv" for name in ("translations", "originals", "dev", "test")
        )


def recipe_of(teacher: Bundle) -> Recipe:
    """Find the recipe of Dragoman that a teacher was trained by.

    Raises:
        DragomanError: its bundle does not have the name of one.
    """
    if teacher.manifest.name not in RECIPES:
        raise DragomanError(
            f"data: expected a teacher of one of the recipes {', '.join(RECIPES)}, found "
            f"{teacher.manifest.name}: name the files of pairs"
        )
    return RECIPES[teacher.manifest.name]


def translate_sources(
    teacher: Bundle,
    data: Data,
    more: Sequence[Path],
    files: DataFiles,
    options: GenerationOptions,
    threads: int | None,
    progress: Progress,
) -> tuple[int, int]:
    """Translate all sources to train on with the teacher.

    The same call goes on with an interrupted one; see `decode_file`.

    Args:
        data: the pairs to train, to validate and to judge on
        more: files of further sources, one per line
        files: the files to write

    Returns:
        the number of different sources, and how many of them the teacher rejected, such as those
        that are too long for it

    Raises:
        DragomanError: a file cannot be read or written, or the teacher rejects every source.
    """
    train = list(data.train)
    sources = list(dict.fromkeys(chain((example.source for example in train), _lines_of(more))))
    write_examples(train, files.originals)
    write_examples(data.validation, files.dev)
    write_examples(data.held_out, files.test)
    text = "".join(f"{source}\n" for source in sources)
    write_whole(files.sources, lambda partial: partial.write_text(text, "utf-8", newline="\n"))
    outputs = _outputs(teacher, files.sources, options, threads, progress)
    translated = [
        Example(source, (" ".join(output.split()),))
        for source, output in zip(sources, outputs, strict=True)
        if output.strip()
    ]
    write_examples(translated, files.translations)
    return len(sources), len(sources) - len(translated)


def load_files(pairs: PairFiles, rules: Cleaning) -> Data:
    """Read and clean files of pairs; those to judge on are by default those to validate on.

    Raises:
        DragomanError: a file cannot be read, or no pair remains.
    """
    corpora = Corpora([Corpus(tuple(pairs.train))], rules)
    return load_pairs(corpora, pairs.validation, pairs.held_out or pairs.validation)


def _lines_of(files: Iterable[Path]) -> Iterator[str]:
    """Read the lines of files that have text, with single spaces."""
    lines = (" ".join(line.split()) for file in files for line in read_lines(file))
    return (line for line in lines if line)


def _outputs(
    teacher: Bundle,
    sources: Path,
    options: GenerationOptions,
    threads: int | None,
    progress: Progress,
) -> list[str]:
    """Translate a file, unless it was translated by the same teacher with the same options."""
    lines = split(sources, BLOCK_LINES)
    work = describe_work(lines, BLOCK_LINES, teacher.directory, options, "text")
    digest = hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()
    output = sources.with_name(f"outputs-{digest[:16]}.txt")
    if not output.exists():
        decoder = BlockDecoder(teacher.directory, options, "text", threads, None)

        def decode_blocks(
            file: LineFile, blocks: Sequence[Block]
        ) -> Iterator[tuple[Block, DecodedBlock]]:
            return ((block, decoder.decode(*file.inputs(block))) for block in blocks)

        decoded = decode_file(
            teacher.directory,
            sources,
            output,
            options,
            decode_blocks,
            block_lines=BLOCK_LINES,
            output_format="text",
            overwrite=False,
            progress=progress,
        )
        if len(decoded.rejected) == decoded.lines:
            output.unlink()
            raise DragomanError(
                f"{teacher.directory}: expected a teacher that translates the sources, found that "
                f"it rejects all {decoded.lines} sources: {decoded.rejected[1]}"
            )
    return read_lines(output)
