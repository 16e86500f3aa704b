"""Large files on workers of Ray.

Plain actors, and not Ray Data: order and resumption come from blocks that are kept as files, which
Ray Data would have to be given from outside too; and an actor per worker loads the model once. What
is read and written passes through this process: machines need the bundle, and no common disk.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.progress import Progress, Silent

from ...decoding.options import GenerationOptions
from ...format.bundle import read_bundle
from ..blocks.decoder import Decoded, Decoder, Form, check_form
from ..blocks.finished import Finished, Joined, description_of
from ..blocks.source import Block, Source, split

BLOCK_LINES = 1024
MOST_LOSSES = 3
"""Workers that may die over one block, or in a row before they have loaded the model."""


def run_file(
    bundle: str | Path,
    source: str | Path,
    output: str | Path,
    options: GenerationOptions | None = None,
    *,
    workers: int = 2,
    threads: int = 1,
    gpus: float = 0.0,
    block_lines: int = BLOCK_LINES,
    form: Form = "text",
    backend: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Joined:
    """Decode a file of lines into one of as many lines, in the same order, on the Ray that
    `ray.init` has connected to.

    Blocks that are finished are kept in a folder beside the output, OUTPUT.blocks, until all are:
    the same call goes on where an earlier one was interrupted. When a worker dies, its block goes
    to another, and it is replaced.

    Args:
        bundle: a directory, which every machine must have at this path
        options: of decoding
        workers: processes, each with a copy of the model
        threads: of each worker; it takes as many of Ray's processors
        gpus: of each worker
        block_lines: lines that are handed to a worker at once; an interruption costs a block of
            each worker
        form: whether a line of output is a text or a JSON object
        overwrite: whether an existing output is replaced
        progress: in lines

    Returns:
        how many lines there are, and which could not be decoded

    Raises:
        DragomanError: something is not as it must be, or workers die of a block again and again.
    """
    source_path, output_path, directory = Path(source), Path(output), Path(bundle).absolute()
    options, progress = options or GenerationOptions(), progress or Silent()
    for name, number in (("workers", workers), ("threads", threads), ("block_lines", block_lines)):
        if number < 1:
            raise DragomanError(f"{name}: expected at least 1, found {number}")
    if not ray.is_initialized():
        raise DragomanError("expected a connection to Ray, found none: call ray.init first")
    refuse_existing(output_path, overwrite)
    refuse_unwritable_file(output_path)
    check_form(read_bundle(directory).manifest, options, form)
    progress.stage("reading the file")
    lines = split(source_path, block_lines)
    description = description_of(lines, block_lines, directory, options, form)
    finished = Finished(output_path, description)
    missing = finished.missing(lines)
    if missing:
        progress.stage("decoding lines")
        done = lines.lines - sum(block.lines for block in missing)
        pool = _Pool(
            ray.remote(Decoder).options(num_cpus=threads, num_gpus=gpus),
            (directory, options, form, threads, backend),
        )
        try:
            for block, decoded in pool.decoded(lines, missing, min(workers, len(missing))):
                finished.add(block, decoded)
                done += block.lines
                progress.advance(done, lines.lines)
        finally:
            pool.close()
    return finished.join(lines)


class _Pool:
    """Workers, each with one block at a time. A worker that cannot be placed yet gets none, so that
    nothing waits for it.

    Args:
        actor: a class of actors; its workers decode
        arguments: what workers are made with
    """

    def __init__(self, actor: Any, arguments: Sequence[Any]) -> None:
        self._actor, self._arguments = actor, arguments
        self._busy: dict[Any, tuple[Any, Block | None]] = {}
        """By what they will answer: workers and their blocks; None: they load the model."""
        self._losses = Counter[Block | None]()

    def decoded(
        self, source: Source, blocks: Sequence[Block], workers: int
    ) -> Iterator[tuple[Block, Decoded]]:
        """Blocks with what became of them, as they are done.

        Raises:
            DragomanError: a worker raises it, or several have died.
        """
        todo, unfinished = deque(blocks), len(blocks)
        for _ in range(workers):
            self._start()
        while unfinished:
            (answer,), _ = ray.wait(list(self._busy))
            worker, block = self._busy.pop(answer)
            try:
                decoded = _answer(answer)
            except RayActorError as error:
                ray.kill(worker)  # which may only be out of reach
                self._lost(block, error)
                if block is not None:
                    todo.appendleft(block)
                self._start()
                continue
            if block is None:
                self._losses.pop(None, None)
            else:
                unfinished -= 1
                yield block, decoded
            if todo:
                following = todo.popleft()
                self._busy[worker.decode.remote(source.read(following))] = worker, following
            else:
                ray.kill(worker)

    def close(self) -> None:
        """End all workers."""
        for worker, _ in self._busy.values():
            ray.kill(worker)
        self._busy.clear()

    def _start(self) -> None:
        worker = self._actor.remote(*self._arguments)
        self._busy[worker.check.remote()] = worker, None

    def _lost(self, block: Block | None, error: RayActorError) -> None:
        self._losses[block] += 1
        if self._losses[block] <= MOST_LOSSES:
            return
        work = "loading the model"
        if block is not None:
            work = f"lines {block.first_line} to {block.first_line + block.lines - 1}"
        raise DragomanError(
            f"{self._losses[block]} workers died of {work}; finished blocks are kept: {error}"
        ) from error


def _answer(reference: Any) -> Any:
    """
    Raises:
        DragomanError: the worker raised it.
        RayActorError: the worker died.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, DragomanError):
            raise error.cause from None
        raise
