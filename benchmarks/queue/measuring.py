"""Throughput of contenders at a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..harness import (
    ContenderError,
    Entrant,
    Failure,
    Spread,
    Turns,
    paired,
    spread,
    take_turns,
)
from .contenders import FROZEN, QueueContender
from .requests import Answer, Queue, Request


@dataclass(frozen=True)
class Measurement:
    """One contender with one number of threads and one size of batch.

    Attributes:
        tokens_per_second: new tokens of all requests over the time until the last is finished
        ratio: of tokens per second over those of frozen batches in the same precision, round by
            round; None if those were not measured
        identical: requests that got the same tokens as from frozen batches; likewise
        mean_delay: seconds from the arrival of a request to its last token; None if all requests
            wait at the beginning
    """

    contender: str
    threads: int
    max_batch_size: int
    tokens_per_second: Spread
    ratio: Spread | None
    identical: int | None
    mean_delay: Spread | None


def measure(
    contenders: Sequence[QueueContender],
    requests: list[Request],
    *,
    max_batch_sizes: Sequence[int],
    checkpoint: Path,
    directory: Path,
    threads: Sequence[int],
    rounds: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[list[Measurement], list[Failure]]:
    """Measure the contenders; of those that fail, only the reason is reported.

    Args:
        checkpoint: a Marian checkpoint
        directory: an existing one, for what contenders prepare
        progress: called with a description of each stage as it begins
    """
    queues = {f"batches of {size}": Queue(requests, size) for size in max_batch_sizes}
    results = take_turns(
        contenders,
        queues,
        checkpoint=checkpoint,
        directory=directory,
        threads=threads,
        rounds=rounds,
        check=check_lengths,
        progress=progress,
    )
    measurements = [
        measurement
        for name, queue in queues.items()
        for measurement in measurements_of(results.turns[name], queue)
    ]
    return measurements, results.failures


def check_lengths(queue: Queue, answers: list[Answer]) -> None:
    """Raises ContenderError unless every request got its number of new tokens."""
    found = [len(answer.tokens) for answer in answers]
    expected = [request.new_tokens for request in queue.requests]
    if found != expected:
        wrong = sum(a != b for a, b in zip(found, expected, strict=False))
        raise ContenderError(
            f"decoding: expected {len(expected)} requests with their numbers of new tokens, found "
            f"{len(found)}, {wrong} of them with other numbers"
        )


def measurements_of(
    turns: Mapping[Entrant, Turns[list[Answer]]], queue: Queue
) -> list[Measurement]:
    """The figures of one queue, from every contender's turns at it."""
    total = sum(request.new_tokens for request in queue.requests)
    over_time = any(request.arrival > 0 for request in queue.requests)
    measurements = []
    for entrant, own in turns.items():
        model = entrant.contender.partition(", ")[0]
        frozen = turns.get(entrant._replace(contender=f"{model}, {FROZEN}"))
        measurements.append(
            Measurement(
                *entrant,
                max_batch_size=queue.max_batch_size,
                tokens_per_second=spread([total / seconds for seconds in own.seconds]),
                ratio=paired(frozen.seconds, own.seconds) if frozen else None,
                identical=_identical(frozen.outcome, own.outcome) if frozen else None,
                mean_delay=spread([_mean_delay(queue, turn.outcome) for turn in own.counted])
                if over_time
                else None,
            )
        )
    return measurements


def _identical(answers: list[Answer], others: list[Answer]) -> int:
    return sum(a.tokens == b.tokens for a, b in zip(answers, others, strict=True))


def _mean_delay(queue: Queue, answers: list[Answer]) -> float:
    return float(
        np.mean(
            [
                answer.finished - request.arrival
                for answer, request in zip(answers, queue.requests, strict=True)
            ]
        )
    )
