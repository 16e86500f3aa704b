"""Decodes large files on workers of Ray.

Workers are actors. Blocks saved as files provide order and resumption, so Ray Data is not used.
Inputs and outputs pass through this process: machines need the bundle, but no shared disk.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from dragoman.errors import DragomanError, shown
from dragoman.progress import Progress, Silent
from dragoman.settings.generation import GenerationOptions

from ..file_blocks import (
    Block,
    BlockDecoder,
    DecodedBlock,
    DecodedFile,
    LineFile,
    OutputFormat,
    decode_file,
)

CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """Connect to a Ray cluster within the context.

    Args:
        address: host:port of a running cluster; None: start a cluster on this machine
        processors: number in a started cluster
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        ray.init(
            "local",
            num_cpus=processors,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
    else:
        _check_listening(address)
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DragomanError(
                f"{address}: expected the address of a Ray cluster: {error}"
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Check that a server listens at an address, as Ray would retry for long."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise DragomanError(
            f"expected the address of a Ray cluster, as in 10.0.0.1:6379, found {address}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DragomanError(
            f"{address}: expected a Ray cluster there, found none: {error}"
        ) from error


BLOCK_LINES = 1024
MOST_LOSSES = 3
"""Workers that may die over one block, or in a row before they have loaded the model."""


def run_file(
    bundle: str | Path,
    source: str | Path,
    output: str | Path,
    options: GenerationOptions | None = None,
    *,
    prefixes: str | Path | None = None,
    workers: int = 2,
    threads: int = 1,
    gpus: float = 0.0,
    block_lines: int = BLOCK_LINES,
    form: OutputFormat = "text",
    backend: str | None = None,
    device: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> DecodedFile:
    """Decode a file line by line on a Ray cluster, in the same order of lines.

    `ray.init` must have connected to the cluster. Finished blocks are saved in OUTPUT.blocks, so
    that repeating an interrupted call resumes it. A worker that dies is replaced.

    Args:
        bundle: bundle directory, which every machine must have at this path
        prefixes: file with the beginning of each output, a line each, which may be blank. None: all
            have the prefix of `options`
        workers: processes, each with a copy of the model
        threads: threads per worker, and processors that Ray reserves for it
        block_lines: lines per block, which an interruption loses for each worker
        backend, device: see `load`; a worker sees only the GPUs that Ray gives it, the first as
            "cuda"

    Raises:
        DragomanError: an argument is wrong, or workers die repeatedly.
    """
    directory, options = Path(bundle).absolute(), options or GenerationOptions()
    for name, number in (("workers", workers), ("threads", threads), ("block_lines", block_lines)):
        if number < 1:
            raise DragomanError(f"{name}: expected at least 1, found {shown(number)}")
    if not ray.is_initialized():
        raise DragomanError("expected a connection to Ray, found none: call ray.init first")

    def decode_blocks(
        lines: LineFile, blocks: Sequence[Block]
    ) -> Iterator[tuple[Block, DecodedBlock]]:
        pool = _Pool(
            ray.remote(BlockDecoder).options(num_cpus=threads, num_gpus=gpus),
            (directory, options, form, threads, backend, device),
        )
        try:
            yield from pool.decode(lines, blocks, min(workers, len(blocks)))
        finally:
            pool.close()

    return decode_file(
        directory,
        Path(source),
        Path(output),
        options,
        decode_blocks,
        prefixes=None if prefixes is None else Path(prefixes),
        block_lines=block_lines,
        output_format=form,
        overwrite=overwrite,
        progress=progress or Silent(),
    )


class _Pool:
    """Workers that decode a block at a time, once Ray has placed them."""

    def __init__(self, actor: Any, arguments: Sequence[Any]) -> None:
        self._actor, self._arguments = actor, arguments
        self._busy: dict[Any, tuple[Any, Block | None]] = {}
        """Workers and their blocks by the answer they owe; None: they load the model."""
        self._losses = Counter[Block | None]()

    def decode(
        self, source: LineFile, blocks: Sequence[Block], workers: int
    ) -> Iterator[tuple[Block, DecodedBlock]]:
        todo, unfinished = deque(blocks), len(blocks)
        for _ in range(workers):
            self._start()
        while unfinished:
            (answer,), _ = ray.wait(list(self._busy))
            worker, block = self._busy.pop(answer)
            try:
                decoded = ray.get(answer)
            except RayTaskError as error:
                if isinstance(error.cause, DragomanError):
                    raise error.cause from None
                raise
            except RayActorError as error:
                ray.kill(worker)  # it may only be unreachable
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
                self._busy[worker.decode.remote(*source.inputs(following))] = worker, following
            else:
                ray.kill(worker)

    def close(self) -> None:
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
