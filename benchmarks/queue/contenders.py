"""The contenders: Dragoman with a batch that is refilled, and with frozen batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.errors import DragomanError

from ..harness import HERE, Contender, Interpreter
from ..models.bundles import bundle_of_checkpoint
from .requests import Answer, Queue, Request, WaitingRoom

if TYPE_CHECKING:
    from dragoman.runtime import Model

QueueContender = Contender[Queue, list[Answer]]
Answering = Callable[[Queue], list[Answer]]

SLOTS, FROZEN, FROZEN_BEFORE = "slots", "frozen", "frozen, before"


def contenders(precisions: list[str], before: Interpreter | None) -> list[QueueContender]:
    """For each precision frozen batches, slots, and frozen batches of another version.

    Args:
        before: has the other version
    """
    kinds = [(FROZEN, load_frozen, HERE), (SLOTS, load_slots, HERE)]
    if before is not None:
        kinds.append((FROZEN_BEFORE, load_frozen, before))
    return [
        Contender(
            name(precision, kind),
            partial(bundle_of_checkpoint, target="cpu", precision=precision),
            load,
            interpreter=interpreter,
        )
        for precision in precisions
        for kind, load, interpreter in kinds
    ]


def name(precision: str, kind: str) -> str:
    """Of a contender."""
    return f"Dragoman {precision}, {kind}"


def load_slots(directory: Path, threads: int) -> Answering:
    """Load a bundle that decodes all requests in one call, or as they arrive."""
    from dragoman.runtime import load

    from .slots import answer_as_they_arrive

    model = load(directory, threads=threads)

    def answer(queue: Queue) -> list[Answer]:
        if any(request.arrival > 0 for request in queue.requests):
            return answer_as_they_arrive(model, queue)
        room = WaitingRoom(queue.requests)
        rows = generate(model, queue.requests, queue.max_batch_size)
        return [Answer(row, room.now) for row in rows]

    return answer


def load_frozen(directory: Path, threads: int) -> Answering:
    """Load a bundle that decodes the requests which wait as one batch, and then the next ones."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)
    old_loop = _old_loop()

    def answer(queue: Queue) -> list[Answer]:
        answers: dict[int, Answer] = {}
        room = WaitingRoom(queue.requests)
        while taken := room.take(queue.max_batch_size, wait=True):
            group = [queue.requests[index] for index in taken]
            if old_loop is None:
                rows = generate(model, group, len(group))
            else:
                rows = _generate_by_old_loop(old_loop, model, group)
            answers |= {i: Answer(row, room.now) for i, row in zip(taken, rows, strict=True)}
        return [answers[index] for index in range(len(queue.requests))]

    return answer


def generate(model: Model, requests: list[Request], max_batch_size: int) -> list[list[int]]:
    """The new tokens of every request, by one call."""
    from dragoman.runtime import GenerationOptions

    options: Any = [
        GenerationOptions(
            max_new_tokens=request.new_tokens,
            max_batch_size=max_batch_size,
            max_batch_tokens=1 << 30,
        )
        for request in requests
    ]
    results = model.generate([request.source for request in requests], options)
    rejected = next((result.error for result in results if result.error), None)
    if rejected is not None:
        raise DragomanError(rejected)
    return [list(result.tokens) for result in results]


def _old_loop() -> Callable[..., Any] | None:
    """The decoding loop of versions that only know frozen batches, whose `generate` takes one
    limit for all sources; None of later ones.
    """
    loop: Callable[..., Any] | None = getattr(
        import_module("dragoman.runtime.decoding.greedy"), "greedy", None
    )
    return loop


def _generate_by_old_loop(
    loop: Callable[..., Any], model: Model, requests: list[Request]
) -> list[list[int]]:
    from dragoman.runtime.decoding.batching import as_batch

    manifest = model.manifest
    prompt = [manifest.model.start_token_id, *manifest.generation.prompt]
    rows: list[list[int]] = [[] for _ in requests]
    for choice in loop(
        model.backend,
        *as_batch([request.source for request in requests], manifest.model),
        np.tile(np.asarray(prompt, np.int64), (len(requests), 1)),
        [request.new_tokens for request in requests],
        manifest.generation,
        manifest.end_tokens,
    ):
        rows[choice.row].append(choice.token)
    return rows
