"""Workloads of servers, text or speech, and the tools that serve them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dragoman.runtime.serving.arrangement import Arrangement

from ...models.bundles import Calibration
from ...models.shapes import SHAPES, describe
from ..contenders import text
from ..rounds import Contender, Perform, unchanged
from ..tasks.speech import read_clips

SOURCES = 500
PEER_SERVER = "dragoman.benchmarks.compare.serving.peer_server"
ServerKind = Literal["dragoman", "ctranslate2", "hugging-face", "faster-whisper"]
FASTER: ServerKind = "faster-whisper"


@dataclass(frozen=True)
class ServedTool(Contender[None, None]):
    """A tool as a server: Dragoman's, or another tool behind the same HTTP layer."""

    kind: ServerKind = "dragoman"
    mode: str = ""
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
            serve = ["dragoman", "serve", str(directory), "--greedy"]
            common += ["--max-waiting", "100000"]
        else:
            serve = [PEER_SERVER, self.kind, str(directory), "--compute-type", self.mode]
        return [sys.executable, "-m", *serve, *common]


def served_tool(
    tool: str, mode: str, prepare: Callable[[Path, Path], Path], kind: ServerKind, *batches: int
) -> ServedTool:
    """Return a tool in a mode, whose attributes are those of `Contender` and `ServedTool`."""
    return ServedTool(
        f"{tool} {mode}",
        prepare,
        _not_called,
        precision=text.precision_of(mode),
        peer=kind != "dragoman",
        kind=kind,
        mode=mode,
        batches=batches,
    )


def _not_called(directory: Path, threads: int) -> Perform[None, None]:
    raise NotImplementedError("a server loads it")


@dataclass(frozen=True)
class Workload:
    """The requests of a comparison, and its tools."""

    model: str
    requests: str
    """Descriptions of the model and the requests."""
    checkpoint: Path
    tools: Sequence[ServedTool]
    """Tools, Dragoman's first; failures of missing tools are reported."""
    bodies: Sequence[dict[str, Any]]
    """JSON of requests, sent cyclically."""
    first_rate: float


def text_workload(shape: str, vocab_size: int | None, checkpoint: Path) -> Workload:
    """Return requests of token ids, whose outputs end with end tokens; write the checkpoint."""
    from ...models.random_checkpoint import write_ending_text_model
    from ...peers import ctranslate2

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    write_ending_text_model(shape, checkpoint, vocab_size=vocab_size, mean_length=text.MEAN_OUTPUT)
    tokens = (1, vocab_size - 1)  # exclude end token and padding
    shortest, longest = text.SOURCE_LENGTHS
    most = text.LONGEST_OUTPUT
    tools = dragoman_tools(64, text.draw_sources(text.CALIBRATION_SOURCES, tokens, seed=99))
    for mode in text.ctranslate2_compute_types():
        if mode in ("float32", "int8"):
            prepare = partial(ctranslate2.prepare, mode=mode)
            tools.append(served_tool(text.CTRANSLATE2, mode, prepare, "ctranslate2", 8, 32))
    tools.append(served_tool("Hugging Face", "fp32", unchanged, "hugging-face", 16))
    return Workload(
        describe(shape, vocab_size),
        f"sources of {shortest} to {longest} tokens, outputs of at most {most}",
        checkpoint,
        tools,
        [{"source": s, "max_new_tokens": most} for s in text.draw_sources(SOURCES, tokens)],
        first_rate=8.0,
    )


def speech_workload(whisper: Path, clips: Path) -> Workload:
    """Return requests of audio files, base64 in JSON, to an English-only Whisper of CTranslate2."""
    files = sorted(read_clips(clips))
    return Workload(
        whisper.name,
        f"{len(files)} clips of speech, transcribed greedily without timestamps",
        whisper,
        [
            *dragoman_tools(16),
            *(served_tool(FASTER, mode, unchanged, FASTER, 1) for mode in ("float32", "int8")),
        ],
        [{"audio": base64.b64encode(file.read_bytes()).decode()} for file in files],
        first_rate=2.0,
    )


def dragoman_tools(batch: int, calibration: Calibration = ()) -> list[ServedTool]:
    """Return Dragoman's server in fp32 and int8."""
    return [
        served_tool(text.DRAGOMAN, kind.precision, kind.preparation(calibration), "dragoman", batch)
        for kind in text.BUNDLES
        if kind.precision != "int4"
    ]
