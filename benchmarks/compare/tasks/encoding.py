"""Compares the latency of sentence embeddings, including tokenization.

Every contender encodes the same texts, all of one length in tokens. The model is the trained
MiniLM-L6, downloaded once. Embeddings are compared with PyTorch's before timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...processes import ProcessError
from ..record import Record, Row, Table, footprint_notes, ranged, sections, standing, table_of
from ..rounds import (
    Entrant,
    Failure,
    Footprint,
    Results,
    Spread,
    Turns,
    against,
    count,
    spread,
    take_turns,
)
from ..task import ONLY, OPENVINO, THREADS, Option, Run, Task
from .encoding_contenders import (
    CALIBRATION_LENGTH,
    CALIBRATION_TEXTS,
    OTHER_PROSE,
    PROSE,
    Calls,
    EncodingContender,
    Vectors,
    calls,
    contenders,
    load_tokenizer,
    pieces,
)
from .greedy import ROUNDS_OF_LATENCY, batch_sizes
from .text_contenders import DRAGOMAN

LOWEST_MEAN_COSINE = 0.9
"""Of the embeddings of a contender with the reference's, in any precision."""
LOWEST_FP32_COSINE = 0.999
"""Of the embedding of any text in fp32."""


@dataclass(frozen=True)
class Measurement:
    """The figures of one contender with one number of threads, text length and batch size.

    Attributes:
        length: tokens of every text
        ms_per_call: time of one batch, from texts to embeddings
        best_fp32_peer: fastest other tool in fp32 with at most as many threads; None: none was
            measured
        fp32_ratio: median time of that peer over this contender's; above 1: this is faster
        best_reduced_peer, reduced_ratio: the same for peers in lower precisions
        cosine, lowest_cosine: mean and lowest cosine similarity to the reference's embeddings
    """

    contender: str
    precision: str
    threads: int
    length: int
    batch_size: int
    ms_per_call: Spread
    texts_per_second: float
    best_fp32_peer: str | None
    fp32_ratio: float | None
    best_reduced_peer: str | None
    reduced_ratio: float | None
    cosine: float
    lowest_cosine: float


def measure(
    run: Run,
    *,
    model: Path | None,
    name: str | None,
    lengths: tuple[int, ...],
    batch_sizes: tuple[int, ...],
    threads: tuple[int, ...],
    rounds: int,
) -> dict[str, Any]:
    """Measure all contenders at all lengths and batch sizes."""
    from ...models.real_models import minilm

    checkpoint = model or minilm()
    tokenizer = load_tokenizer(checkpoint)
    prose = PROSE.read_text(encoding="utf-8")
    other = pieces(OTHER_PROSE.read_text(encoding="utf-8"), tokenizer, CALIBRATION_LENGTH)
    everyone = contenders([*islice(other, CALIBRATION_TEXTS)], openvino_in=run.openvino)
    items = [calls(prose, tokenizer, length, size) for length in lengths for size in batch_sizes]
    return {
        "model": name or (model.name if model else "MiniLM-L6"),
        "threads": threads,
        "rounds": rounds,
        **measure_encoding(run, everyone, items, checkpoint, threads=threads, rounds=rounds),
    }


def measure_encoding(
    run: Run,
    everyone: Sequence[EncodingContender],
    items: Sequence[Calls],
    checkpoint: Path,
    *,
    threads: Sequence[int],
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders: `measurements`, `footprints`, `failures`.

    The reference first encodes all texts; other contenders are compared with its embeddings before
    timing.

    Raises:
        ProcessError: the reference failed.
    """
    chosen = run.chosen(contender for contender in everyone if contender.timed)
    work = {str(item): item for item in items}
    taking = partial(
        take_turns,
        items=work,
        checkpoint=checkpoint,
        directory=run.directory,
        progress=run.progress,
    )
    judges = [contender for contender in everyone if contender.required]
    judge: Results[Vectors] = taking(judges, threads=[max(threads)], rounds=0)
    expected = {name: next(iter(turns.values())).outcome for name, turns in judge.turns.items()}
    results: Results[Vectors] = taking(
        chosen,
        threads=threads,
        rounds=rounds,
        check=lambda item, found: check_vectors(found, expected[str(item)]),
    )
    by_name = {contender.name: contender for contender in chosen}
    measurements = [
        measurement
        for name, item in work.items()
        for measurement in measurements_of(results.turns[name], by_name, item, expected[name])
    ]
    return without_wrong(measurements, results.footprints, results.failures)


def check_vectors(found: Vectors, expected: Vectors) -> None:
    """Check the shape and the direction of embeddings.

    Raises:
        ProcessError: the shape or a direction differs.
    """
    if found.shape != expected.shape:
        raise ProcessError(f"expected vectors of shape {expected.shape}, found {found.shape}")
    mean = float(cosines(found, expected).mean())
    if not mean >= LOWEST_MEAN_COSINE:
        raise ProcessError(
            f"expected vectors with a mean cosine of at least {LOWEST_MEAN_COSINE}, "
            f"found {mean:.3f}"
        )


def cosines(found: Vectors, expected: Vectors) -> Vectors:
    """Return the cosines of the angles between rows."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    of_rows: Vectors = (found * expected).sum(1) / lengths
    return of_rows


def measurements_of(
    turns: Mapping[Entrant, Turns[Vectors]],
    contenders: Mapping[str, EncodingContender],
    item: Calls,
    expected: Vectors,
) -> list[Measurement]:
    """Return the figures of one work item from the turns of all contenders.

    Args:
        contenders: contenders by name
    """
    medians = {entrant: own.median for entrant, own in turns.items()}
    measurements = []
    for entrant, own in turns.items():
        fp32, reduced = (
            {
                other: median
                for other, median in medians.items()
                if contenders[other.contender].peer
                and other.threads <= entrant.threads
                and contenders[other.contender].fp32 == in_fp32
            }
            for in_fp32 in (True, False)
        )
        best_fp32_peer, fp32_ratio = against(medians[entrant], fp32)
        best_reduced_peer, reduced_ratio = against(medians[entrant], reduced)
        of_texts = cosines(own.outcome, expected)
        measurements.append(
            Measurement(
                contender=entrant.contender,
                precision=contenders[entrant.contender].precision,
                threads=entrant.threads,
                length=item.length,
                batch_size=item.batch_size,
                ms_per_call=spread(own.seconds, 1e3 / len(item.texts)),
                texts_per_second=round(len(expected) / medians[entrant], 1),
                best_fp32_peer=best_fp32_peer,
                fp32_ratio=fp32_ratio,
                best_reduced_peer=best_reduced_peer,
                reduced_ratio=reduced_ratio,
                cosine=round(float(of_texts.mean()), 6),
                lowest_cosine=round(float(of_texts.min()), 6),
            )
        )
    return measurements


def without_wrong(
    measurements: Sequence[Measurement],
    footprints: Sequence[Footprint],
    failures: Sequence[Failure],
) -> dict[str, Any]:
    """Return the figures, with fp32 contenders of wrong embeddings moved to failures."""
    lowest: dict[str, float] = {}
    for m in measurements:
        if m.precision == "fp32":
            lowest[m.contender] = min(m.lowest_cosine, lowest.get(m.contender, 1.0))
    wrong = {name: cosine for name, cosine in lowest.items() if cosine < LOWEST_FP32_COSINE}
    return {
        "measurements": [m for m in measurements if m.contender not in wrong],
        "footprints": [f for f in footprints if f.contender not in wrong],
        "failures": [
            *failures,
            *(
                Failure(
                    name,
                    f"expected cosines of {LOWEST_FP32_COSINE} at least in fp32, found {cosine}",
                )
                for name, cosine in wrong.items()
            ),
        ],
    }


COLUMNS = (
    ("", "{contender}"),
    ("tokens", "{length}"),
    ("batch", "{batch_size}"),
    ("threads", "{threads}"),
    ("ms/call", "{ms_per_call[0]:.2f}"),
    ("lowest - highest", "{ms_per_call[1]:.2f} - {ms_per_call[2]:.2f}"),
    ("texts/s", "{texts_per_second:,.0f}"),
    ("x fp32 peers", "{fp32_ratio:.2f}"),
    ("x lower peers", "{reduced_ratio:.2f}"),
    ("cosine", "{cosine:.4f}"),
    ("lowest", "{lowest_cosine:.4f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each measurement, by length and batch size."""
    title = f"{record['model']}; {record['rounds']} rounds"
    section = ["length", "batch_size"]
    yield table_of(record["measurements"], COLUMNS, title=title, section=section)


def notes(record: Record) -> Iterator[str]:
    """Yield comparisons with peers in fp32 and in lower precisions, and footprints."""
    yield from standings(record["measurements"])
    yield from footprint_notes(record)


def standings(measurements: Iterable[Row]) -> Iterator[str]:
    """Compare Dragoman's precisions with peers in fp32 and in lower precisions."""
    for own in sections(measurements, lambda m: m["contender"]):
        name = own[0]["contender"]
        for kind, peer, ratio in (
            ("peer in fp32", "best_fp32_peer", "fp32_ratio"),
            ("peer in a lower precision", "best_reduced_peer", "reduced_ratio"),
        ):
            if name.startswith(DRAGOMAN):
                cases = {
                    f"{m['length']} tokens, batch {m['batch_size']}, "
                    f"{count(m['threads'], 'thread')}, against {m[peer]}": m[ratio]
                    for m in own
                }
                yield from standing(name, kind, cases)


def documentation(record: Record) -> Iterator[Table]:
    """Yield a table for each number of threads, with the best in bold, and cosines."""
    for rows in sections(record["measurements"], lambda row: row["threads"]):
        best = {
            _case(case[0]): min(row["ms_per_call"][0] for row in case)
            for case in sections(rows, _case)
        }
        lines = []
        for own in sections(rows, lambda row: row["contender"]):
            cells = [
                f"**{ranged(row['ms_per_call'])}**"
                if row["ms_per_call"][0] == best[_case(row)]
                else ranged(row["ms_per_call"])
                for row in own
            ]
            mean = sum(row["cosine"] for row in own) / len(own)
            lowest = min(row["lowest_cosine"] for row in own)
            lines.append([own[0]["contender"], *cells, f"{mean:.4f}", f"{lowest:.4f}"])
        headings = [f"{length} tokens, batch {size}" for length, size in best]
        first = f"{count(rows[0]['threads'], 'thread')}, ms per call"
        yield Table([first, *headings, "cosine", "lowest"], lines)


def _case(row: Row) -> tuple[int, int]:
    return row["length"], row["batch_size"]


ENCODING = Task(
    name="encoding",
    help="Compare the latency of sentence embeddings, from texts to vectors.",
    options=(
        Option(
            "--model",
            "Directory of sentence-transformers with mean pooling [default: MiniLM-L6, "
            "downloaded].",
            Path,
        ),
        Option("--name", "The model's name in the record [default: the directory's]."),
        Option(
            "--length",
            "Tokens of every text, special tokens included;",
            int,
            (16, 128),
            least=3,
            parameter="lengths",
        ),
        batch_sizes(1, 8, 32, what="Texts encoded by one call;"),
        THREADS,
        ROUNDS_OF_LATENCY,
        ONLY,
        OPENVINO,
    ),
    measure=measure,
    rows="measurements",
    file=lambda record, options: (
        f"encoding-{record['model']}-{'-'.join(map(str, record['threads']))}-threads".lower()
    ),
    tables=tables,
    notes=notes,
    documentation=documentation,
)
