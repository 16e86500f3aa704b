"""What is asked of servers, and which tools take part: texts, or speech."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..harness import unchanged
from ..models.bundles import bundle_of_checkpoint
from ..models.shapes import SHAPES, describe
from ..speech.clips import read_clips
from ..text.contenders import BUNDLES, CTRANSLATE2, ctranslate2_compute_types
from ..throughput.work import CALIBRATED_ON, LONGEST_OUTPUT, SOURCE_LENGTHS, draw_sources
from .served import ServedTool, served_tool

MEAN_OUTPUT = 32
SOURCES = 500


@dataclass(frozen=True)
class Workload:
    """
    Attributes:
        name: of the model, for names of files
        model, requests: descriptions
        checkpoint: what tools prepare
        tools: Dragoman's first. Those that are not installed are included: their failure is
            reported
        bodies: JSON of requests, sent again and again
        first_rate: requests a second at which the search begins
    """

    name: str
    model: str
    requests: str
    checkpoint: Path
    tools: Sequence[ServedTool]
    bodies: Sequence[dict[str, Any]]
    first_rate: float


def text_workload(shape: str, vocab_size: int | None, directory: Path) -> Workload:
    """Token ids, with outputs that end by themselves: no tokenizer is measured.

    Args:
        directory: an existing one, for the checkpoint
    """
    from ..throughput.checkpoint import write_ending_text_model

    vocab_size = vocab_size or SHAPES[shape].vocab_size
    checkpoint = directory / "checkpoint"
    write_ending_text_model(shape, checkpoint, vocab_size=vocab_size, mean_length=MEAN_OUTPUT)
    tokens = (1, vocab_size - 1)  # without end token and padding
    shortest, longest = SOURCE_LENGTHS
    return Workload(
        shape,
        describe(shape, vocab_size),
        f"sources of {shortest} to {longest} tokens, outputs of at most {LONGEST_OUTPUT}",
        checkpoint,
        text_tools(draw_sources(CALIBRATED_ON, tokens, seed=99)),
        [
            {"source": source, "max_new_tokens": LONGEST_OUTPUT}
            for source in draw_sources(SOURCES, tokens)
        ],
        first_rate=8.0,
    )


def text_tools(calibration: Sequence[list[int]]) -> list[ServedTool]:
    """
    Args:
        calibration: sources that Dragoman's bundles are quantized with
    """
    from ..peers import ctranslate2

    return [
        *(
            served_tool(bundle.contender, bundle.preparation(calibration))
            for bundle in BUNDLES
            if bundle.precision != "int4"
        ),
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
    """Audio files as they are, base64 in JSON: all tools read them and compute features.

    Args:
        whisper: Whisper in CTranslate2's format, of English alone
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
            *(
                served_tool(
                    bundle.contender,
                    partial(bundle_of_checkpoint, target=bundle.target, precision=bundle.precision),
                    batches=(16,),
                )
                for bundle in BUNDLES
                if bundle.precision != "int4"
            ),
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
