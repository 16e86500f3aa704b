"""Compares the latency of sentence embeddings, or of reranking, including tokenization.

Every contender encodes the same texts, all of one length in tokens, or a queue of texts of unlike
lengths. The model is the trained MiniLM-L6, downloaded once, or has random weights. Embeddings and
scores are compared with PyTorch's before timing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from ...models.shapes import ENCODERS
from ...processes import ProcessError
from .. import options
from .. import record as records
from ..contenders import encoding
from ..contenders.encoding import Calls, EncodingContender, Vectors, case_name
from ..contenders.text import DRAGOMAN
from ..record import Record, Row, Table, distinct, pivoted, ranged, sections, table_of
from ..rounds import Entrant, Failure, Footprint, Turns, against, count, spread
from ..task import Options, Run, Task

LOWEST_MEAN_COSINE = 0.9
"""Of the embeddings of a contender with the reference's, in any precision; of scores, agreement."""
LOWEST_FP32_COSINE = 0.999
"""Of the embedding, or agreement of the score, of any text in fp32."""
TRAINED = "MiniLM-L6"
AllTurns = Mapping[Entrant, Turns[Vectors]]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders at all lengths and batch sizes, and at the queue."""
    model, checkpoint = checkpoint_of(given, run.checkpoint)
    tokenizer, query = encoding.load_tokenizer(checkpoint), encoding.QUERY if given.rerank else ""
    calibration = encoding.calibration_texts(tokenizer, query)
    everyone = encoding.contenders(calibration, openvino_in=run.openvino, rerank=given.rerank)
    prose = encoding.PROSE.read_text(encoding="utf-8")
    cases = product(given.lengths, given.batch_sizes)
    items = [encoding.calls(prose, tokenizer, *case, query) for case in cases]
    if given.queue:
        items.append(encoding.queue(prose, tokenizer, given.queue, query))
    common = {"threads": given.threads, "rounds": given.rounds}
    return {
        "model": given.name or model,
        **common,
        **measure_encoding(run, everyone, items, checkpoint=checkpoint, **common),
    }


def checkpoint_of(given: Options, directory: Path) -> tuple[str, Path]:
    """Return the name and the directory of the model, which is written unless it is given."""
    from ...models.random_checkpoint import write_random_encoder
    from ...models.real_models import minilm

    if given.model:
        return given.model.name, given.model
    name, like = given.shape or TRAINED, minilm()
    random = bool(given.shape or given.rerank)
    if random:
        write_random_encoder(name.lower(), directory, like=like, cross_encoder=given.rerank)
    else:
        shutil.copytree(like, directory)
    if not given.rerank:  # texts are not cut at 256 tokens
        (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 512}', "utf-8")
    return f"{name}-random" if random else name, directory


def measure_encoding(
    run: Run, everyone: Sequence[EncodingContender], items: Sequence[Calls], **ways: Any
) -> dict[str, Any]:
    """Measure contenders, the reference first: `measurements`, `footprints`, `failures`."""
    chosen = run.chosen(everyone)
    work = {str(item): item for item in items}
    expected: dict[str, Vectors] = {}  # the reference takes the first turn

    def check(item: Calls, found: Vectors) -> None:
        check_vectors(found, expected.setdefault(str(item), found))

    results = run.take_turns(chosen, work, check=check, **ways)
    by_name = {contender.name: contender for contender in chosen}
    measurements = [
        row
        for name, item in work.items()
        for row in measurements_of(results.turns[name], by_name, item, expected[name])
    ]
    return without_wrong(measurements, results.footprints, results.failures)


def check_vectors(found: Vectors, expected: Vectors) -> None:
    """Raise ProcessError if the shape or the direction of embeddings, or scores, differ."""
    if found.shape != expected.shape:
        raise ProcessError(f"expected an array of shape {expected.shape}, found {found.shape}")
    mean = float(cosines(found, expected).mean())
    if not mean >= LOWEST_MEAN_COSINE:
        raise ProcessError(
            f"expected a mean similarity to the reference's of at least {LOWEST_MEAN_COSINE}, "
            f"found {mean:.3f}"
        )


def cosines(found: Vectors, expected: Vectors) -> Vectors:
    """Return the cosines between rows; of scores, 1 minus the difference of two probabilities."""
    if found.ndim == 1:
        agreement: Vectors = 1 - np.abs(found - expected)
        return agreement
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    of_rows: Vectors = (found * expected).sum(1) / lengths
    return of_rows


def measurements_of(
    turns: AllTurns, contenders: Mapping[str, EncodingContender], item: Calls, expected: Vectors
) -> list[Row]:
    """Return a row for each contender and number of threads, of one work item.

    Returns:
        rows of the case; `ms_per_call`: spread of the time of one batch, from texts to embeddings;
        `texts_per_second`; the figures of `against` peers with at most as many threads, those in
        fp32 and those in lower precisions; and the mean and lowest similarity to the reference's
        embeddings or scores, see `cosines`
    """
    timed = {entrant: own for entrant, own in turns.items() if own.counted}
    similarity = "cosine" if expected.ndim == 2 else "agreement"
    rows: list[Row] = []
    for entrant, own in timed.items():
        peers: dict[bool, dict[Entrant, float]] = {True: {}, False: {}}
        for other, theirs in timed.items():
            contender = contenders[other.contender]
            if contender.peer and other.threads <= entrant.threads:
                peers[contender.fp32][other] = theirs.median
        of_texts = cosines(own.outcome, expected)
        rows.append(
            {
                "contender": entrant.contender,
                "precision": contenders[entrant.contender].precision,
                "threads": entrant.threads,
                "length": item.length,
                "batch_size": item.batch_size,
                "ms_per_call": spread(own.seconds, 1e3 / len(item.texts)),
                "texts_per_second": round(len(expected) / own.median, 1),
                **against(own.median, peers[True], "fp32"),
                **against(own.median, peers[False], "reduced"),
                similarity: round(float(of_texts.mean()), 6),
                f"lowest_{similarity}": round(float(of_texts.min()), 6),
            }
        )
    return rows


def without_wrong(
    measurements: Sequence[Row], footprints: Sequence[Footprint], failures: Sequence[Failure]
) -> dict[str, Any]:
    """Return the figures, with fp32 contenders of wrong embeddings moved to failures."""
    wrong = {
        own[0]["contender"]: lowest
        for own in sections(measurements, "contender")
        if own[0]["precision"] == "fp32"
        and (lowest := min(m[f"lowest_{similarity_in(m)}"] for m in own)) < LOWEST_FP32_COSINE
    }
    similarity = similarity_in(measurements[0]) if measurements else ""
    reason = f"expected {similarity}s of {LOWEST_FP32_COSINE} at least in fp32, found"
    return {
        "measurements": [m for m in measurements if m["contender"] not in wrong],
        "footprints": [f for f in footprints if f.contender not in wrong],
        "failures": [*failures, *(Failure(name, f"{reason} {c}") for name, c in wrong.items())],
    }


def case_of(row: Row) -> str:
    """Return the name of the work item of a measurement."""
    return case_name(row["length"], row["batch_size"])


def similarity_in(row: Row) -> str:
    """Return the name of the similarity that a measurement has."""
    return "cosine" if "cosine" in row else "agreement"


COLUMNS = (
    ("", "{contender}"),
    ("tokens", "{length:d}"),
    ("batch", "{batch_size}"),
    ("threads", "{threads}"),
    ("ms/call", "{ms_per_call[0]:.2f}"),
    ("lowest - highest", "{ms_per_call[1]:.2f} - {ms_per_call[2]:.2f}"),
    ("texts/s", "{texts_per_second:,.0f}"),
    ("x fp32 peers", "{fp32_ratio:.2f}"),
    ("x lower peers", "{reduced_ratio:.2f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each measurement, by length and batch size; a queue has no length."""
    name = similarity_in(record["measurements"][0])
    columns = (*COLUMNS, (name, f"{{{name}:.4f}}"), ("lowest", f"{{lowest_{name}:.4f}}"))
    title = f"{record['model']}; {record['rounds']} rounds"
    section = ["length", "batch_size"]
    yield table_of(record["measurements"], columns, title=title, section=section)


def notes(record: Record) -> Iterator[str]:
    """Yield comparisons with peers in fp32 and in lower precisions, and footprints."""
    yield from standings(record["measurements"])
    yield from records.footprint_notes(record)


def standings(measurements: Iterable[Row]) -> Iterator[str]:
    """Compare Dragoman's precisions with peers in fp32 and in lower precisions."""
    kinds = {"fp32_": "peer in fp32", "reduced_": "peer in a lower precision"}

    def case(row: Row) -> str:
        return f"{case_of(row)}, {count(row['threads'], 'thread')}"

    for own in sections(measurements, "contender"):
        if own[0]["contender"].startswith(DRAGOMAN):
            yield from records.standings(own[0]["contender"], own, kinds, case)


def documentation(record: Record) -> Iterator[Table]:
    """Yield a table for each number of threads, with the best in bold, and cosines."""
    measurements = record["measurements"]
    name = similarity_in(measurements[0])
    cases = sections(measurements, "threads", "length", "batch_size")
    best = [min(case, key=lambda row: row["ms_per_call"][0]) for case in cases]

    def cell(row: Row) -> str:
        text = ranged(row["ms_per_call"])
        return f"**{text}**" if row in best else text

    def similarity(own: Sequence[Row]) -> list[str]:
        mean = sum(row[name] for row in own) / len(own)
        return [f"{mean:.4f}", f"{min(row[f'lowest_{name}'] for row in own):.4f}"]

    for rows in sections(measurements, "threads"):
        first = f"{count(rows[0]['threads'], 'thread')}, ms per call"
        lines = pivoted(rows, ["contender"], cell, more=similarity)
        yield Table([first, *distinct(map(case_of, rows)), name, "lowest"], lines)


MODEL = (
    "Directory of sentence-transformers with mean pooling, or with --rerank of a cross-encoder "
    "[default: MiniLM-L6, downloaded]."
)
RANDOM = "Shape of a model with random weights, instead of --model."
RERANK = "Score documents with a query; without --model by a cross-encoder of random weights."
QUEUE = (
    "Texts of 8 to 256 tokens in a queue, encoded besides; 32 at once by tools that do not form "
    "batches of similar length."
)
TOKENS = "Tokens of every text, special tokens included;"

ENCODING = Task(
    name="encoding",
    help="Compare the latency of sentence embeddings, from texts to vectors, or of reranking.",
    options=(
        options.option("--model", MODEL, kind=Path),
        options.option("--shape", RANDOM, kind=[*ENCODERS]),
        options.option("--rerank", RERANK, False, is_flag=True),
        options.option("--queue", QUEUE, kind=int),
        options.option("--name", "The model's name in the record [default: the directory's]."),
        options.option("--length", TOKENS, (16, 128), click.IntRange(3), parameter="lengths"),
        options.batch_sizes(1, 8, 32, what="Texts encoded by one call;"),
        options.each_with_threads(1, 2),
        options.rounds(7),
        options.ONLY,
        options.OPENVINO,
    ),
    measure=measure,
    rows="measurements",
    file=lambda record, options: (
        f"{'reranking' if options['rerank'] else 'encoding'}-{record['model']}"
        f"-{'-'.join(map(str, record['threads']))}-threads".lower()
    ),
    tables=tables,
    notes=notes,
    documentation=documentation,
)
