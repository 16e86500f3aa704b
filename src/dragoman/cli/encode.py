"""`dragoman encode`"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .lines import IDS_EXPECTED, Line, arriving_lines, in_parts, token_ids, unreadable
from .messages import tell
from .options import backend_option, threads_option

if TYPE_CHECKING:
    from dragoman.runtime import Model
    from dragoman.runtime.format.head import Head

GROUP = 1024
"""The most lines that are read before results are written."""


@click.command(short_help="Give what an encoder says of texts: vectors, labels, answers.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("texts", nargs=-1)
@click.option(
    "--truncate",
    is_flag=True,
    help="Leave out what is beyond the model's positions [such lines are rejected].",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Candidates for each mask, in JSON.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write vectors to this .npy file, float32 [lines, size]; NaN where a line is rejected.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object for each line, with all scores and the error.",
)
@backend_option
@threads_option
def encode(
    bundle: Path,
    texts: tuple[str, ...],
    truncate: bool,
    top: int,
    output: Path | None,
    force: bool,
    as_json: bool,
    backend: str | None,
    threads: int | None,
) -> int:
    """Read TEXTS, or the lines of standard input, with BUNDLE, an encoder alone: one line out for
    each line in. What it is depends on the model: a vector, as numbers with spaces between; the
    best label, a tab and its score; each word, a slash and its label; the text with its masks
    filled; or an answer.

    A line may be a pair of texts with a tab between, for a model that classifies; for one that
    answers questions it must be: question, tab, context. For a bundle without tokenizers, lines are
    token ids. A line that cannot be read gives an empty line, a message on standard error and, at
    the end, exit status 1.

    \b
    dragoman encode bundles/minilm "A man is eating food." "Someone has a meal."
    dragoman encode bundles/minilm -o vectors.npy < sentences.txt
    dragoman encode bundles/bert "Paris is the [MASK] of France." --json --top 3
    """
    from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
    from dragoman.runtime import load
    from dragoman.runtime.abilities import AbilityError

    if output is not None:
        if as_json:
            raise DragomanError("--json: expected no --output, which takes vectors alone")
        refuse_existing(output, force)
        refuse_unwritable_file(output)
    groups: Iterable[Sequence[Line]] = [texts]
    if not texts:
        groups = arriving_lines(sys.stdin.buffer) if sys.stdin else []  # None: closed
    with load(bundle, threads=threads, backend=backend) as model:
        head = model.encoder.head
        if output is not None and head.task != "embedding":
            raise AbilityError(f"--output: expected a model that gives vectors, found {head.task}")
        writer = _Writer(head.task, as_json=as_json, keep=output is not None)
        for lines in in_parts(groups, GROUP):
            _encode(model, lines, writer, truncate=truncate, top=top)
            sys.stdout.flush()
        if output is not None:
            _save(output, writer.vectors, head.outputs)
    writer.summarize()
    return 1 if writer.rejected else 0


class _Writer:
    """Writes a line for each result.

    Args:
        keep: whether to keep vectors in place of writing them
    """

    def __init__(self, task: str, *, as_json: bool, keep: bool) -> None:
        self._line, self._as_json, self._keep = LINES[task], as_json, keep
        self.vectors: list[Any] = []
        self.number = self.rejected = self.truncated = 0

    def write(self, result: Any, source: Any = None) -> None:
        self.number += 1
        self.truncated += result.truncated
        if result.error is not None:
            self.rejected += 1
            tell(f"line {self.number}: {result.error}")
        if self._keep:
            self.vectors.append(result.vector)
        elif self._as_json:
            click.echo(json.dumps(_plain(result), ensure_ascii=False, allow_nan=False))
        else:
            click.echo("" if result.error is not None else self._line(result, source))

    def summarize(self) -> None:
        if self.truncated:
            tell(f"{self.truncated} of {self.number} lines were truncated")


LINES: dict[str, Callable[[Any, Any], str]] = {
    "embedding": lambda result, source: " ".join(f"{number:.7g}" for number in result.vector),
    "sequence-classification": lambda result, source: (
        f"{result.label}\t{result.labels[0].score:.4f}"
    ),
    "token-classification": lambda result, source: " ".join(
        f"{_word(tag.text, source, number)}/{tag.label}" for number, tag in enumerate(result.words)
    ),
    "masked-language-model": lambda result, source: _filled(result),
    "question-answering": lambda result, source: " ".join(result.text.split()),
}
"""A result as a line, and its source, by the task of the head."""


def _word(text: str | None, source: Any, number: int) -> str:
    """A word; of token ids, of which each is one, the id."""
    return str(source[number]) if text is None else text


def _filled(result: Any) -> str:
    if result.text is not None:
        return str(result.text)
    return " ".join(str(candidates[0].token) for candidates in result.masks)


def _plain(result: Any) -> dict[str, Any]:
    if hasattr(result, "vector"):
        vector = result.vector.tolist()
        return {"vector": vector, "error": result.error, "truncated": result.truncated}
    return dataclasses.asdict(result)


def _encode(
    model: Model, lines: Sequence[Line], writer: _Writer, *, truncate: bool, top: int
) -> None:
    head = model.encoder.head
    sources = [_source(model, head, line) for line in lines]
    good = [source.value for source in sources if isinstance(source, _Source)]
    found: Sequence[Any]
    match head.task:
        case "embedding":
            found = model.encoder.embeddings(good, truncate=truncate)
        case "sequence-classification":
            found = model.classify(good, truncate=truncate)
        case "token-classification":
            found = model.tag(good, truncate=truncate)
        case "masked-language-model":
            found = model.fill(good, top=top, truncate=truncate)
        case "question-answering":
            found = model.answer(good, truncate=truncate)
    following = iter(found)
    for source in sources:
        if isinstance(source, _Source):
            writer.write(next(following), source.value)
        else:
            writer.write(_rejected(head.task, source))


@dataclasses.dataclass(frozen=True)
class _Source:
    """What a line states: a text, a pair of texts, or token ids."""

    value: Any


def _source(model: Model, head: Head, line: Line) -> _Source | str:
    """The source that a line states, or why it states none."""
    from dragoman.runtime import RejectedError
    from dragoman.runtime.encoding.lines import source_of_line

    if isinstance(line, UnicodeDecodeError):
        return unreadable(line)
    if model.manifest.tokenizers is None and head.task != "question-answering":
        ids = token_ids(line)
        return IDS_EXPECTED if ids is None else _Source(ids)
    try:
        return _Source(source_of_line(line, head))
    except RejectedError as error:
        return str(error)


def _rejected(task: str, reason: str) -> Any:
    import numpy as np

    from dragoman.runtime.encoding import results

    kinds: dict[str, Any] = {
        "embedding": lambda: results.Embedding(np.empty(0, np.float32), reason),
        "sequence-classification": lambda: results.Classification(error=reason),
        "token-classification": lambda: results.Tagging(error=reason),
        "masked-language-model": lambda: results.Filling(error=reason),
        "question-answering": lambda: results.Answer(error=reason),
    }
    return kinds[task]()


def _save(path: Path, vectors: Sequence[Any], size: int) -> None:
    """Write vectors whole or not at all; those of lines that could not be read are NaN."""
    import numpy as np

    from dragoman.whole_files import write_whole

    rows = [vector if len(vector) else np.full(size, np.nan, np.float32) for vector in vectors]
    array = np.array(rows, np.float32).reshape(len(rows), size)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    write_whole(path, write)
