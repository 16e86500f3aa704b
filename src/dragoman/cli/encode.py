"""The commands of encoder-only models: `dragoman encode`, `classify` and `rerank`."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import click
import numpy as np

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.files.regular_files import write_whole
from dragoman.files.text_lines import IDS_EXPECTED, Line, token_ids, unreadable
from dragoman.runtime import Model, RejectedError, load
from dragoman.runtime.arguments import AbilityError, check_able, check_count
from dragoman.runtime.encoding import results
from dragoman.runtime.encoding.front_end import source_of_line
from dragoman.runtime.encoding.tasks import TEMPLATE, ZeroShot
from dragoman.runtime.encoding.tokenizer import ReadingKeywords
from dragoman.runtime.model import parts_of
from dragoman.settings.head import Head

from .shared.options import (
    PATH,
    backend_option,
    bundle_argument,
    check_option,
    counted,
    device_option,
    gathered,
    json_option,
    split_option,
    threads_option,
)
from .shared.terminal import in_parts, notify, standard_input

GROUP = 1024
"""The most lines that are read before results are written."""

truncate_option = functools.partial(click.option, "--truncate", is_flag=True)
encoder_loading = gathered("loading", backend_option, device_option, check_option, threads_option)


@click.command()
@bundle_argument
@click.argument("texts", nargs=-1)
@truncate_option(help="Cut lines that are too long for the model [rejected].")
@click.option(
    "--stride", type=int, metavar="N", help="Read long contexts in windows that share N tokens."
)
@split_option
@click.option(
    *("--prompt-name", "--prompt", "prompt_name"),
    metavar="NAME",
    help="Prompt to put before texts [the model's default].",
)
@counted(
    "--dimensions",
    help="Keep the first N numbers of embeddings, normalized if the model's are [all].",
)
@counted(
    "--top",
    default=5,
    show_default=True,
    help="With --json: the number of candidates for each mask.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write embeddings to this .npy file, float32 [lines, size]; NaN for rejected lines.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option(help="Write a JSON object for each line: results, scores, error.")
@encoder_loading
def encode(
    bundle: Path,
    texts: tuple[str, ...],
    stride: int | None,
    dimensions: int | None,
    top: int,
    output: Path | None,
    force: bool,
    as_json: bool,
    loading: dict[str, Any],
    **reading: Any,
) -> int:
    """Run an encoder-only model on TEXTS, or on the lines of standard input.

    A line is written for each line read. The model's task decides what it holds: an embedding, as
    numbers; the best label, a tab and its score; each word, a slash and its label; the text with
    its masks filled; or an answer.

    A model that classifies also takes pairs of texts, separated by a tab; a model that answers
    questions takes a question, a tab and a context. For a bundle without tokenizers, lines are
    token ids. A line that is rejected gives an empty line and a message, and the exit status is 1.

    \b
    dragoman encode bundles/minilm "A man is eating food." "Someone has a meal."
    dragoman encode bundles/minilm -o embeddings.npy < sentences.txt
    dragoman encode bundles/bert "Paris is the [MASK] of France." --json --top 3
    """
    if output is not None:
        if as_json:
            raise DragomanError("--json: expected no --output, which holds embeddings only")
        refuse_existing(output, force)
        refuse_unwritable_file(output)
    with load(bundle, **loading) as model:
        if model.manifest.head is None:
            check_able(model.manifest, "encode")
        head = parts_of(model).encoder.head
        for option, given in (("--output", output), ("--dimensions", dimensions)):
            if given is not None and head.task != "embedding":
                raise AbilityError(
                    f"{option}: expected a model that computes embeddings, found {head.task}"
                )
        if stride is not None:
            check_count("stride", stride)
            if head.task != "question-answering":
                raise AbilityError(
                    f"--stride: expected a model that answers questions, found {head.task}"
                )
        if dimensions is not None:
            results.check_dimensions(dimensions, head.outputs)
            if dimensions < head.outputs:
                notify(
                    f"Note: {dimensions} of {head.outputs} dimensions; the model's card says "
                    "whether it was trained for so few"
                )
        writer = _Writer(head.task, dimensions, as_json=as_json, keep=output is not None)
        for lines in _lines(texts):
            _encode(model, lines, writer, top=top, stride=stride, **reading)
        if output is not None:
            _save(output, writer.vectors, dimensions or head.outputs)
    writer.summarize()
    return 1 if writer.rejected else 0


@click.command()
@bundle_argument
@click.argument("texts", nargs=-1)
@click.option(
    "--labels",
    metavar="A,B,...",
    help="Classify by these labels, with a model of natural language inference [the model's].",
)
@click.option(
    "--hypothesis-template",
    metavar="TEXT",
    help=f"The hypothesis, with {{}} where the label goes [{TEMPLATE}].",
)
@click.option(
    "--multi-label",
    is_flag=True,
    help="Give each label a probability of its own, so that several may be true.",
)
@truncate_option(
    help="Leave out the end of texts that are too long for the model [they are rejected]."
)
@split_option
@json_option(help="Write a JSON object, with all labels.")
@encoder_loading
def classify(
    bundle: Path,
    texts: tuple[str, ...],
    labels: str | None,
    hypothesis_template: str | None,
    multi_label: bool,
    as_json: bool,
    loading: dict[str, Any],
    **reading: Any,
) -> int:
    """Classify TEXTS, or the lines of standard input, by any labels.

    A line is written for each text: the best label, a tab and its probability. Labels that the
    model was not trained on need a model of natural language inference. A text that is rejected
    gives an empty line and a message, and the exit status is 1.

    \b
    dragoman classify bundles/nli --labels food,travel "The soup was cold."
    dragoman classify bundles/nli --labels food,travel --multi-label --json < reviews.txt
    """
    zero_shot = _zero_shot(labels, hypothesis_template, multi_label)
    with load(bundle, **loading) as model:
        check_able(model.manifest, "classify" if zero_shot is None else "classify_zero_shot")
        writer = _Writer("sequence-classification", None, as_json=as_json, keep=False)
        for lines in _lines(texts):
            _encode(model, lines, writer, zero_shot=zero_shot, **reading)
    writer.summarize()
    return 1 if writer.rejected else 0


@click.command()
@bundle_argument
@click.argument("query")
@click.argument("documents", nargs=-1)
@counted("--top", help="Write the best N [all].")
@truncate_option(
    help="Leave out the end of documents that are too long for the model [they are rejected]."
)
@split_option
@json_option(help="Write a JSON object for each document.")
@encoder_loading
def rerank(
    bundle: Path,
    query: str,
    documents: tuple[str, ...],
    top: int | None,
    as_json: bool,
    loading: dict[str, Any],
    **reading: Any,
) -> int:
    """Rank DOCUMENTS, or the lines of standard input, by their relevance to QUERY.

    A line is written for each document, best first: its score, a tab and the document. A document
    that is rejected gives a message, and the exit status is 1.

    \b
    dragoman rerank bundles/reranker "Who wrote Faust?" "Goethe did." "It rains."
    dragoman rerank bundles/reranker "Who wrote Faust?" --top 3 < passages.txt
    """
    lines: list[Line] = [*documents]
    if not documents:
        lines = [line for group in standard_input() for line in group]
    texts = [line for line in lines if isinstance(line, str)]
    numbers = [number for number, line in enumerate(lines) if isinstance(line, str)]
    with load(bundle, **loading) as model:
        found = model.rerank(query, texts, **reading)
    problems = {numbers[each.index]: each.error for each in found if each.error is not None}
    for number, line in enumerate(lines):
        if not isinstance(line, str):
            problems[number] = unreadable(line)
    for number, problem in sorted(problems.items()):
        notify(f"document {number + 1}: {problem}")
    for each in [each for each in found if each.score is not None][:top]:
        number, text = numbers[each.index], texts[each.index]
        if as_json:
            values = {"index": number, "score": each.score, "text": text}
            click.echo(json.dumps(values | {"truncated": each.truncated}, ensure_ascii=False))
        else:
            click.echo(f"{each.score:.6g}\t{text}")
    return 1 if problems else 0


def _zero_shot(labels: str | None, template: str | None, multi_label: bool) -> ZeroShot | None:
    if labels is None:
        if template is not None or multi_label:
            option = "--multi-label" if template is None else "--hypothesis-template"
            raise DragomanError(f"{option}: expected --labels, found none")
        return None
    given = [label.strip() for label in labels.split(",")]
    return ZeroShot.of(given, TEMPLATE if template is None else template, multi_label)


def _lines(texts: Sequence[str]) -> Iterator[Sequence[Line]]:
    return in_parts([texts] if texts else standard_input(), GROUP)


class _Writer:
    def __init__(self, task: str, dimensions: int | None, *, as_json: bool, keep: bool) -> None:
        self._line, self._as_json, self._keep = LINES[task], as_json, keep
        self._dimensions = dimensions
        self.vectors: list[Any] = []
        self.number = self.rejected = self.truncated = 0

    def write(self, result: Any, source: Any = None) -> None:
        self.number += 1
        self.truncated += result.truncated
        if result.error is not None:
            self.rejected += 1
            notify(f"line {self.number}: {result.error}")
        elif self._dimensions is not None:
            vector = results.shortened(result.vector, self._dimensions)
            result = dataclasses.replace(result, vector=vector)
        if self._keep:
            self.vectors.append(result.vector)
        elif self._as_json:
            values = dataclasses.asdict(result)
            if "vector" in values:
                values["vector"] = result.vector.tolist()
            click.echo(json.dumps(values, ensure_ascii=False, allow_nan=False))
        else:
            click.echo("" if result.error is not None else self._line(result, source))

    def summarize(self) -> None:
        if self.truncated:
            notify(f"{self.truncated} of {self.number} lines were truncated")


LINES: dict[str, Callable[[Any, Any], str]] = {
    "embedding": lambda result, source: " ".join(f"{number:.7g}" for number in result.vector),
    "sequence-classification": lambda result, source: (
        f"{result.label}\t{result.labels[0].score:.4f}"
    ),
    "token-classification": lambda result, source: " ".join(
        f"{source[number] if tag.text is None else tag.text}/{tag.label}"
        for number, tag in enumerate(result.words)
    ),
    "masked-language-model": lambda result, source: (
        " ".join(str(candidates[0].token) for candidates in result.masks)
        if result.text is None
        else str(result.text)
    ),
    "question-answering": lambda result, source: " ".join(result.text.split()),
}
"""The functions that make a line from a result and its source, by the task of the head."""


def _encode(
    model: Model,
    lines: Sequence[Line],
    writer: _Writer,
    *,
    top: int = 1,
    stride: int | None = None,
    zero_shot: ZeroShot | None = None,
    **reading: Unpack[ReadingKeywords],
) -> None:
    encoder = parts_of(model).encoder
    head = encoder.head
    sources = [_source(model, head, line, is_text=zero_shot is not None) for line in lines]
    good = [source for source in sources if not isinstance(source, RejectedError)]
    found: Sequence[Any]
    match head.task:
        case "embedding":
            found = encoder.embeddings(good, **reading)
        case "sequence-classification":
            found = encoder.classify(good, zero_shot=zero_shot, **reading)
        case "token-classification":
            found = model.tag(good, **reading)
        case "masked-language-model":
            found = model.fill(good, top=top, **reading)
        case "question-answering":
            found = model.answer(good, stride=stride, **reading)
    following = iter(found)
    for source in sources:
        if isinstance(source, RejectedError):
            writer.write(_rejected(head.task, str(source)))
        else:
            writer.write(next(following), source)
    sys.stdout.flush()


def _source(model: Model, head: Head, line: Line, *, is_text: bool) -> Any:
    """Parse a line as a text (tabs included), a pair or token ids; or return why it is invalid."""
    if isinstance(line, UnicodeDecodeError):
        return RejectedError(unreadable(line))
    if is_text:
        return line
    if model.manifest.tokenizers is None and head.task != "question-answering":
        ids = token_ids(line)
        return RejectedError(IDS_EXPECTED) if ids is None else ids
    try:
        return source_of_line(line, head)
    except RejectedError as error:
        return error


def _rejected(task: str, reason: str) -> Any:
    if task == "embedding":
        return results.Embedding(np.empty(0, np.float32), reason)
    kinds: dict[str, Any] = {
        "sequence-classification": results.Classification,
        "token-classification": results.Tagging,
        "masked-language-model": results.Filling,
        "question-answering": results.Answer,
    }
    return kinds[task](error=reason)


def _save(path: Path, vectors: Sequence[Any], size: int) -> None:
    rows = [vector if len(vector) else np.full(size, np.nan, np.float32) for vector in vectors]
    array = np.array(rows, np.float32).reshape(len(rows), size)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    write_whole(path, write)
