"""Dragoman compared with other tools: the same weights and inputs, interleaved in one run.

    python -m dragoman.benchmarks.compare --output benchmarks/results

Every contender decodes a fixed number of new tokens, greedily or with beams; the encoder is
included. In each round all contenders take a turn, with every number of threads; a figure is the
median over the rounds, with its range. The weights are random but seeded, in the shape of published
models, and every tool gets the same checkpoint of them. Dragoman's int8 and int4 are calibrated on
other sources of the same kind.
"""

# Nothing that imports torch is imported at the top: the contenders' processes import this module,
# and most of them are measured without PyTorch.

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from .circumstances import circumstances
from .gpu.contenders import engine_sizes, gpu_contenders
from .harness import HERE, Interpreter
from .models.options import shape_option, vocab_size_option
from .models.shapes import SHAPES, describe
from .taking_part import before_option, only_option, openvino_option, selected
from .text.contenders import BUNDLES, TextContender, cpu_contenders
from .text.floor import floors
from .text.measuring import Figures, measure
from .text.pace import best_pace, measure_pace
from .text.report import Comparison, plot, show
from .text.word_error import word_errors
from .text.workload import Workload

TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""


@click.command()
@shape_option
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8, 32),
    show_default=True,
    help="Sources decoded as one batch; may be repeated.",
)
@click.option(
    "--beams",
    "num_beams",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of every source; 1 is greedy decoding.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    multiple=True,
    help="Threads of every contender; may be repeated, and each takes part with each number "
    "[default: 1 and 2, on a GPU 2].",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    help="Counted rounds; a warm-up comes before them.",
)
@vocab_size_option
@click.option(
    "--source-length",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Tokens of every source.",
)
@click.option(
    "--longest-source",
    type=click.IntRange(1, 1024),
    help="Draw lengths from --source-length to this one.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(1, 1023),
    default=64,
    show_default=True,
    help="Tokens generated for every source.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: engines and other tools on an NVIDIA GPU.",
)
@only_option
@openvino_option
@before_option
@click.option(
    "--quality/--no-quality",
    "with_quality",
    default=True,
    show_default=True,
    help="Also measure the word error of the trained model g2p-en in Dragoman's precisions.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write the figures to, as JSON and as a plot.",
)
def main(
    shape: str,
    batch_sizes: tuple[int, ...],
    num_beams: int,
    threads: tuple[int, ...],
    rounds: int,
    vocab_size: int | None,
    source_length: int,
    longest_source: int | None,
    new_tokens: int,
    device: str,
    only: tuple[str, ...],
    openvino_python: Path | None,
    before: Path | None,
    with_quality: bool,
    output: Path | None,
) -> None:
    """Compare Dragoman with other tools, on seeded random weights in the shape of published models.

    What cannot be measured, such as a tool that is not installed, is reported with the reason.
    """
    _check_lengths(shape, source_length, longest_source, new_tokens)
    if device == "cuda" and num_beams > 1:
        raise click.ClickException(f"expected --beams 1 with --device cuda, found {num_beams}")
    vocab_size = vocab_size or SHAPES[shape].vocab_size
    workload = Workload(
        longest_source=longest_source,
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        source_length=source_length,
        new_tokens=new_tokens,
        tokens=(1, vocab_size - 1),  # without the end token (first) and padding (last)
        threads=tuple(dict.fromkeys(threads)) or ((1, 2) if device == "cpu" else (2,)),
        rounds=rounds,
        num_beams=num_beams,
        turn_seconds=TURN_SECONDS,
    )
    load_average = os.getloadavg()[0]
    try:
        openvino = Interpreter.of_environment(openvino_python) if openvino_python else HERE
        earlier = Interpreter.of_tree(before) if before else None
        if device == "cpu":
            contenders = cpu_contenders(
                num_beams,
                calibration=workload.calibration(),
                openvino_in=openvino,
                before=earlier,
            )
        else:
            contenders = gpu_contenders(engine_sizes(workload))
        on_cpu = workload.threads if device == "cpu" else ()
        before_rounds = [measure_pace(n) for n in on_cpu]
        figures = _measure(shape, vocab_size, workload, contenders, only)
        measured = {m.contender for m in figures.measurements}
        after_rounds = [measure_pace(n) for n in on_cpu]
        paces = [best_pace(moments) for moments in zip(before_rounds, after_rounds, strict=True)]
        bundles = [bundle for bundle in BUNDLES if bundle.contender in measured and with_quality]
        word_error = word_errors(bundles, max(workload.threads)) if bundles else {}
        where = circumstances(
            "dragoman.benchmarks.compare",
            load_average,
            gpu=_gpu() if device == "cuda" else None,
            environments=[openvino] if openvino_python else [],
            trees={"dragoman, before": before} if before else {},
        )
    except DragomanError as error:
        raise click.ClickException(str(error)) from error
    comparison = Comparison(
        shape=describe(shape, vocab_size),
        source_length=source_length,
        new_tokens=new_tokens,
        threads=workload.threads,
        rounds=rounds,
        measurements=figures.measurements,
        footprints=figures.footprints,
        word_error=word_error,
        failures=figures.failures,
        circumstances=where,
        longest_source=longest_source,
        num_beams=num_beams,
        costs=figures.costs,
        paces=paces,
        floors=floors(
            paces,
            {b.contender: b.precision for b in BUNDLES if b.contender in measured},
            SHAPES[shape],
            workload,
            vocab_size,
        ),
    )
    show(comparison)
    if output is not None and comparison.measurements:
        output.mkdir(parents=True, exist_ok=True)
        name = f"gpu-{shape}" if device == "cuda" else _name(shape, workload)
        (output / f"{name}.json").write_text(comparison.to_json(), encoding="utf-8")
        plot(comparison, output / f"{name}.png")
    if not comparison.measurements:
        raise click.ClickException("expected at least one contender that works, found none")


def _check_lengths(
    shape: str, source_length: int, longest_source: int | None, new_tokens: int
) -> None:
    positions = SHAPES[shape].positions
    if max(source_length, longest_source or 0, new_tokens + 1) > positions:
        raise click.ClickException(
            f"expected sources of at most {positions} tokens and at most {positions - 1} new ones, "
            f"which {shape} has positions for, found {longest_source or source_length} and "
            f"{new_tokens}"
        )
    if longest_source is not None and longest_source < source_length:
        raise click.ClickException(
            f"expected --longest-source to be at least --source-length, found {longest_source} and "
            f"{source_length}"
        )


def _name(shape: str, workload: Workload) -> str:
    """Of the record, such as cpu-base-4-beams-1-2-threads."""
    beams = f"-{workload.num_beams}-beams" if workload.num_beams > 1 else ""
    return f"cpu-{shape}{beams}-{'-'.join(map(str, workload.threads))}-threads"


def _measure(
    shape: str,
    vocab_size: int,
    workload: Workload,
    contenders: Sequence[TextContender],
    only: Sequence[str],
) -> Figures:
    from .models.random_checkpoint import write_random_text_model

    names = [contender.name for contender in contenders]
    taking_part = selected(names, only)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as workspace, console.status("") as status:
        checkpoint = Path(workspace) / "checkpoint"
        write_random_text_model(shape, checkpoint, vocab_size=vocab_size)
        return measure(
            contenders,
            taking_part,
            workload,
            checkpoint=checkpoint,
            directory=Path(workspace),
            progress=status.update,
        )


def _gpu() -> str:
    from dragoman.runtime.backends.cuda import find_gpu

    gpu = find_gpu()
    return f"{gpu.name}, compute capability {gpu.compute_capability}"


if __name__ == "__main__":
    main()
