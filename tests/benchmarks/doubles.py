"""Contenders that compute nothing, in a module that other processes import quickly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.benchmarks.compare.record import Circumstances
from dragoman.benchmarks.processes import HERE, Interpreter
from dragoman.errors import DragomanError

if TYPE_CHECKING:
    from dragoman.benchmarks.compare.contenders.queue import Decode, Share
    from dragoman.benchmarks.peers.interface import Batch, Generate, Rows


OPENVINO_PYTHON = os.environ.get("DRAGOMAN_OPENVINO_PYTHON")
"""The environment of `peers-openvino`, which `make test-peers` sets up."""
OPENVINO = Interpreter.of_environment(Path(OPENVINO_PYTHON)) if OPENVINO_PYTHON else HERE


CIRCUMSTANCES = Circumstances("a machine", 0.5, {"numpy": "2"}, "2026-01-01", "a command")


def compared(*words: object) -> str:
    """The output of the command, which succeeds."""
    from click.testing import CliRunner

    from dragoman.benchmarks.compare.__main__ import main

    outcome = CliRunner().invoke(main, [str(word) for word in words])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def prepare_nothing(checkpoint: Path, directory: Path) -> Path:
    raise DragomanError("expected another checkpoint")


def bundle_of_cached_graphs(checkpoint: Path, directory: Path, **kind: Any) -> Path:
    """`bundle_of_checkpoint` with the tests' cache of graphs, in any process."""
    from dragoman.benchmarks.models.bundles import bundle_of_checkpoint
    from dragoman.export import exporter, neutral_bundle

    from ..export_cache import cached_export

    vars(neutral_bundle)["export_graph"] = cached_export(exporter.export_graph)
    return bundle_of_checkpoint(checkpoint, directory, **kind)


def load_sevens(directory: Path, threads: int) -> Generate:
    return lambda batch: [[7] * batch.new_tokens for _ in batch.sources]


def load_short_of_memory(directory: Path, threads: int) -> Generate:
    def generate(batch: Batch) -> Rows:
        if len(batch.sources) > 2:
            raise MemoryError("too many sources")
        return [[7] * batch.new_tokens for _ in batch.sources]

    return generate


def load_ending_early(directory: Path, threads: int) -> Generate:
    return lambda batch: [[7] for _ in batch.sources]


def load_counting(directory: Path, threads: int) -> Decode:
    """Outputs of sources that begin with 9 do not end."""

    def decode(share: Share) -> Rows:
        return [[7] * (share.max_new_tokens if source[0] == 9 else 4) for source in share.sources]

    return decode


def load_failing(directory: Path, threads: int) -> Decode:
    def decode(share: Share) -> Rows:
        raise ValueError("no decoding today")

    return decode


def load_losing_rows(directory: Path, threads: int) -> Decode:
    return lambda share: []
