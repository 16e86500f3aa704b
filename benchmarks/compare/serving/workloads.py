"""Workloads of servers, text or speech, and the tools that serve them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, describe
from ..rounds import Contender, Perform, unchanged
from ..tasks.decoding import (
    CALIBRATION_SOURCES,
    LONGEST_OUTPUT,
    MEAN_OUTPUT,
    SOURCE_LENGTHS,
    draw_sources,
)
from ..tasks.speech import read_clips
from ..tasks.text_contenders import BUNDLES, CTRANSLATE2, ctranslate2_compute_types, precision_of
from ..tasks.throughput import Arrangement

SOURCES = 500
PEER_SERVER = "dragoman.benchmarks.compare.serving.peer_server"

ServerKind = Literal["dragoman", "ctranslate2", "hugging-face", "faster-whisper"]


@dataclass(frozen=True)
class ServedTool(Contender[None, None]):
    """A tool as a server: Dragoman's, or another tool behind the same HTTP layer.

    Attributes:
        kind: kind of server
        compute_type: compute type of CTranslate2 and faster-whisper
        batches: maximum batch sizes to try
    """

    kind: ServerKind = "dragoman"
    compute_type: str = ""
    batches: tuple[int, ...] = (64,)

    def arrangements(self, cores: int) -> list[Arrangement]:
        """Return the arrangements of one worker with all cores, and of one worker per core.

        Hugging Face's models share one thread pool, so they have one worker.
        """
        workers = (1,) if self.kind == "hugging-face" else tuple(sorted({cores, 1}, reverse=True))
        return [Arrangement(n, cores // n, batch) for n in workers for batch in self.batches]

    def command(self, directory: Path, arrangement: Arrangement) -> list[str]:
        """Return the command that starts the server."""
        workers, threads, batch = map(str, arrangement)
        common = ["--workers", workers, "--threads", threads, "--batch-size", batch, "--port", "0"]
        if self.kind == "dragoman":
            waiting = ["--max-waiting", "100000"]
            return [sys.executable, "-m", "dragoman", "serve", str(directory), *common, *waiting]
        options = ["--compute-type", self.compute_type] if self.compute_type else []
        return [sys.executable, "-m", PEER_SERVER, self.kind, str(directory), *options, *common]


def served_tool(
    name: str,
    prepare: Callable[[Path, Path], Path],
    *,
    kind: ServerKind = "dragoman",
    compute_type: str = "",
    batches: tuple[int, ...] = (64,),
) -> ServedTool:
    """Return a served tool, whose precision is the last word of its name.

    Args:
        prepare: see `Contender`
    """
    return ServedTool(
        name,
        prepare,
        _not_called,
        precision=precision_of(name.split()[-1]),
        peer=kind != "dragoman",
        kind=kind,
        compute_type=compute_type,
        batches=batches,
    )


def _not_called(directory: Path, threads: int) -> Perform[None, None]:
    raise NotImplementedError("a server loads it")


@dataclass(frozen=True)
class Workload:
    """The requests of a comparison, and its tools.

    Attributes:
        name: name of the model in file names
        model, requests: descriptions of the model and the requests
        checkpoint: checkpoint that tools prepare
        tools: tools, Dragoman's first; failures of missing tools are reported
        bodies: JSON of requests, sent cyclically
        first_rate: initial rate of the search, in requests per second
    """

    name: str
    model: str
    requests: str
    checkpoint: Path
    tools: Sequence[ServedTool]
    bodies: Sequence[dict[str, Any]]
    first_rate: float


def text_workload(shape: str, vocab_size: int | None, directory: Path) -> Workload:
    """Return requests of token ids, whose outputs end with end tokens.

    No tokenizer is measured.

    Args:
        directory: existing directory, in which the checkpoint is written as `checkpoint`
    """
    from ...models.random_checkpoint import write_ending_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    checkpoint = directory / "checkpoint"
    write_ending_text_model(shape, checkpoint, vocab_size=vocab_size, mean_length=MEAN_OUTPUT)
    tokens = (1, vocab_size - 1)  # exclude end token and padding
    shortest, longest = SOURCE_LENGTHS
    return Workload(
        shape,
        describe(shape, vocab_size),
        f"sources of {shortest} to {longest} tokens, outputs of at most {LONGEST_OUTPUT}",
        checkpoint,
        text_tools(draw_sources(CALIBRATION_SOURCES, tokens, seed=99)),
        [
            {"source": source, "max_new_tokens": LONGEST_OUTPUT}
            for source in draw_sources(SOURCES, tokens)
        ],
        first_rate=8.0,
    )


def dragoman_tools(
    calibration: Calibration = (), batches: tuple[int, ...] = (64,)
) -> list[ServedTool]:
    """Return Dragoman's server in fp32 and int8.

    Args:
        calibration: calibration inputs of its bundles
    """
    return [
        served_tool(bundle.contender, bundle.preparation(calibration), batches=batches)
        for bundle in BUNDLES
        if bundle.precision != "int4"
    ]


def text_tools(calibration: Calibration) -> list[ServedTool]:
    """Return the tools that serve texts."""
    from ...peers import ctranslate2

    return [
        *dragoman_tools(calibration),
        *(
            served_tool(
                f"{CTRANSLATE2} {compute_type}",
                partial(ctranslate2.prepare, compute_type=compute_type),
                kind="ctranslate2",
                compute_type=compute_type,
                batches=(8, 32),
            )
            for compute_type in ctranslate2_compute_types()
            if compute_type in ("float32", "int8")
        ),
        served_tool("Hugging Face fp32", unchanged, kind="hugging-face", batches=(16,)),
    ]


def speech_workload(whisper: Path, clips: Path) -> Workload:
    """Return requests of audio files, base64 in JSON.

    All tools read the files and compute features.

    Args:
        whisper: an English-only Whisper in CTranslate2's format
        clips: see `read_clips`

    Raises:
        DragomanError: the clips cannot be read.
    """
    files = sorted(read_clips(clips))
    return Workload(
        f"whisper-{whisper.name.removeprefix('whisper-')}",
        whisper.name,
        f"{len(files)} clips of speech, transcribed greedily without timestamps",
        whisper,
        [
            *dragoman_tools(batches=(16,)),
            *(
                served_tool(
                    f"faster-whisper {compute_type}",
                    unchanged,
                    kind="faster-whisper",
                    compute_type=compute_type,
                    batches=(1,),
                )
                for compute_type in ("float32", "int8")
            ),
        ],
        [{"audio": base64.b64encode(file.read_bytes()).decode()} for file in files],
        first_rate=2.0,
    )
