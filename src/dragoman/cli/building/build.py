"""The commands `dragoman build`, and `export` and `optimize`, its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError, api
from dragoman.api import BuiltBundle
from dragoman.errors import refuse_unwritable_file
from dragoman.files.regular_files import write_text
from dragoman.optimize.targets import TARGETS, choose_target
from dragoman.optimize.tensorrt.profiles import NAMED_BATCHES
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import PassRecord, Precision, Range, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.format.plain_data import to_plain

from ..shared.options import (
    PATH,
    POSITIVE,
    SectionedCommand,
    attention_option,
    audio_window_option,
    checkpoint_options,
    comparison_options,
    force_option,
    gathered,
    in_section,
    option_names,
    output_option,
    target_options,
    threads_option,
)
from ..shared.tables import print_engines, print_parity, print_passes
from ..shared.terminal import notify, shown_progress
from .verify import VerificationFailedError


def parse_range(text: str) -> Range:
    """Parse a size, or a range with an optional best size: 8, 1..32, 1..8..32."""
    if text in NAMED_BATCHES:
        return NAMED_BATCHES[text]
    with contextlib.suppress(ValueError):
        match [int(part) for part in text.split("..")]:
            case [size]:
                return Range(size, size, size)
            case [smallest, largest]:
                return Range(smallest, largest, largest)
            case [smallest, best, largest]:
                return Range(smallest, best, largest)
    expected = "a size or a range such as 8, 1..32 or 1..8..32"
    raise click.BadParameter(f"expected {expected}, found {text}")


engine_option = in_section("TensorRT engines")

engine_options = gathered(
    "engine_values",
    engine_option(
        "--profile",
        "batches",
        type=parse_range,
        multiple=True,
        metavar="BATCH",
        help="Batch sizes: 8, 1..32, 1..8..32 (best 8), latency or throughput; repeatable "
        "[1..8..32].",
    ),
    engine_option(
        "--source-length",
        type=parse_range,
        metavar="TOKENS",
        help="Tokens of a source, in the same form [all that the model takes].",
    ),
    engine_option(
        "--capacity",
        type=POSITIVE,
        metavar="N",
        help="Maximum number of new tokens [the model's default].",
    ),
    engine_option(
        "--compute-capability",
        "compute_capabilities",
        multiple=True,
        metavar="X.Y",
        help="Build for these GPUs, such as 8.9,12.0 [Ampere and later].",
    ),
    engine_option(
        "--refittable", is_flag=True, help="Allow `build --refit` with new weights later."
    ),
)
"""Adds the options of engines to a command, whose `engine_values` `engine_request` takes."""


def engine_request(
    target: str | None, precision: Precision, engine_values: Mapping[str, Any]
) -> EngineRequest | None:
    """Create an engine request from the options; None: no option is set."""
    batches, capabilities = engine_values["batches"], engine_values["compute_capabilities"]
    names = [name for text in capabilities for name in text.replace(",", " ").split()]
    request = EngineRequest(
        batches or EngineRequest.batches,
        engine_values["source_length"],
        engine_values["capacity"],
        tuple(dict.fromkeys(names)),
        engine_values["refittable"],
    )
    if request == EngineRequest():
        return None
    chosen = choose_target(target, precision)
    if chosen.executable == "onnx":
        defaults = dataclasses.asdict(EngineRequest())
        options = {"batches": "--profile", "compute_capabilities": "--compute-capability"}
        name = next(n for n, v in dataclasses.asdict(request).items() if v != defaults[n])
        with_engines = " or ".join(t.name for t in TARGETS if t.executable != "onnx")
        raise DragomanError(
            f"{options.get(name, '--' + name.replace('_', '-'))} is for engines: expected "
            f"--target {with_engines}, found {chosen.name}"
        )
    return request


@click.command(cls=SectionedCommand)
@click.argument("checkpoint")
@output_option
@checkpoint_options
@audio_window_option
@target_options
@engine_options
@engine_option(
    "--refit",
    type=PATH,
    metavar="BUNDLE",
    help="Put the checkpoint's weights into the engines of this bundle.",
)
@comparison_options
@attention_option
@click.option(
    "--shortlist",
    type=PATH,
    metavar="FILE",
    help="Decode with the target tokens that this file lists for source tokens: lines of source, "
    "target, probability; vmap.txt; or Marian's .bin.",
)
@click.option(
    "--shortlist-from",
    type=PATH,
    metavar="PAIRS",
    help="Learn the shortlist from a file of texts and translations, with tabs between them.",
)
@threads_option
@click.option(
    "--allow-failed-parity",
    is_flag=True,
    help="Keep a bundle that fails the check, marked as failed.",
)
@force_option
@click.pass_context
def build(
    context: click.Context,
    /,
    checkpoint: str,
    output: Path,
    target: str | None,
    precision: Precision,
    engine_values: dict[str, Any],
    refit: Path | None,
    with_attention: bool,
    allow_failed_parity: bool,
    force: bool,
    **given: Any,
) -> None:
    """Export, optimize and verify CHECKPOINT for a target.

    CHECKPOINT is a directory of Hugging Face, CTranslate2, Marian or Dragoman, the id of a model at
    the Hugging Face Hub, or a shipped model, such as g2p-en. OUTPUT appears only if the bundle
    computes what the model computes in PyTorch, on --inputs, held-out data, a spoken sentence or
    random inputs; otherwise the exit status is 1. A closed standard output does not stop it.

    \b
    dragoman build g2p-en -o bundles/g2p-en
    dragoman build Helsinki-NLP/opus-mt-en-de -o bundles/en-de --precision int8
    dragoman build g2p-en -o bundles/g2p-en-rtx --target tensorrt-rtx --precision fp16
    """

    def compared(graphs: Bundle, parity: Parity) -> None:
        with contextlib.suppress(OSError):  # of standard output, for what is printed at the end
            print_passes(graphs.manifest.passes)
            print_parity(parity)

    if refit is not None:
        if any(engine_values.values()):
            raise DragomanError(
                f"--refit: expected no options for engines, those of {refit} keep theirs"
            )
        engines = None
    else:
        engines = engine_request(target, precision, engine_values)
    with option_names(context.command):
        try:
            with shown_progress() as progress:
                built = api.build(
                    checkpoint,
                    output,
                    target=target,
                    precision=precision,
                    engines=engines,
                    refit=refit,
                    keep_failed=allow_failed_parity,
                    attention=with_attention,
                    overwrite=force,
                    progress=progress,
                    compared=compared,
                    **given,
                )
        except api.ParityFailedError as error:
            if error.kept is not None:
                _print_engines(error.kept)
            raise VerificationFailedError(str(error)) from error
    _print_engines(built)
    manifest = built.bundle.manifest
    when = ""
    if isinstance(manifest.executable, TensorRTEngines):
        ran = manifest.executable.parity is not None
        when = " before and after" if ran else " before"
        when += " its engines were built"
    head, verb = manifest.head, "run" if manifest.head is None else "encode"
    if head is not None and head.task == "sequence-classification" and head.outputs == 1:
        verb = "rerank"
    next_command = f"dragoman {verb} {output} ..."
    if manifest.precision == "bf16":
        next_command = f"dragoman inspect {output}"
    if built.not_run is not None:
        next_command = f"dragoman verify {output}, on the GPU of its engines"
    notify(f"Built {output}, parity passed{when}. Next: {next_command}", err=False)


def _print_engines(built: BuiltBundle) -> None:
    manifest = built.bundle.manifest
    for warning in (*manifest.notes, *built.warnings):
        notify(f"Warning: {warning}")
    print_engines(manifest)
    if built.not_run is not None:
        click.echo(f"engines not run: {built.not_run}")
    if isinstance(manifest.executable, TensorRTEngines) and manifest.executable.parity is not None:
        print_parity(manifest.executable.parity)


@click.command()
@click.argument("checkpoint")
@output_option
@checkpoint_options
@audio_window_option
@attention_option
@force_option
def export(checkpoint: str, output: Path, with_attention: bool, force: bool, **given: Any) -> None:
    """Export CHECKPOINT to a bundle of neutral ONNX graphs, without verifying it.

    CHECKPOINT is as for `dragoman build`. The graphs are in fp32, with operators of opset 24 in the
    default domain. They are the input of `dragoman optimize`.

    \b
    dragoman export g2p-en -o bundles/neutral
    """
    with shown_progress() as progress:
        bundle = api.export(
            checkpoint,
            output,
            attention=with_attention,
            overwrite=force,
            progress=progress,
            **given,
        )
    for note in bundle.manifest.notes:
        notify(f"Warning: {note}")
    model = (
        checkpoint if given["revision"] is None else f"{checkpoint} --revision {given['revision']}"
    )
    model += "".join(f" --adapter {adapter}" for adapter in given["adapters"])
    notify(f"Exported {output}, not verified. Next: dragoman verify {output} {model}", err=False)


@click.command(cls=SectionedCommand)
@click.argument("source", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Bundle or ONNX file to write.")
@target_options
@engine_options
@click.option("--report", type=PATH, help="Write a record of each pass to this JSON file.")
@click.option(
    "--no-compare", is_flag=True, help="ONNX file: do not measure what each pass changes."
)
@force_option
def optimize(
    source: Path,
    output: Path,
    target: str | None,
    precision: Precision,
    calibration: Path | None,
    keep_fp32: tuple[str, ...],
    engine_values: dict[str, Any],
    report: Path | None,
    no_compare: bool,
    force: bool,
) -> None:
    """Optimize SOURCE, a neutral bundle or an ONNX file, for a target.

    The output shows what every pass fused, which nodes it left unchanged and why, and the largest
    difference that it caused. For the TensorRT targets, engines are built from a bundle. The result
    is not verified: `dragoman verify` does that.

    \b
    dragoman optimize bundles/neutral -o bundles/int8 --precision int8
    dragoman optimize bundles/neutral -o bundles/rtx --target tensorrt-rtx --precision fp16
    dragoman optimize decoder.onnx -o fused.onnx --target neutral --report fused.json
    """
    engines = engine_request(target, precision, engine_values)
    if report is not None:
        refuse_unwritable_file(report)
    if source.is_dir():
        if no_compare:
            raise click.UsageError("--no-compare is for ONNX files, bundles are always compared")
        with shown_progress() as progress:
            optimized = api.optimize(
                source,
                output,
                target=target,
                precision=precision,
                calibration=calibration,
                keep_fp32=keep_fp32,
                engines=engines,
                overwrite=force,
                progress=progress,
            )
        records: Sequence[PassRecord] = optimized.bundle.manifest.passes
        print_passes(records)
        for warning in optimized.warnings:
            notify(f"Warning: {warning}")
        print_engines(optimized.bundle.manifest)
        note = f"not verified. Next: dragoman verify {output} CHECKPOINT"
    else:
        if precision != "fp32":
            raise DragomanError(
                f"{source}: --precision {precision} needs a bundle, whose embeddings are known"
            )
        if calibration is not None:
            raise DragomanError(f"{source}: --calibration needs a bundle, which can decode texts")
        if keep_fp32:
            raise DragomanError(f"{source}: --keep-fp32 needs a bundle, whose weights are rounded")
        with shown_progress() as progress:
            records = api.optimize_onnx(
                source,
                output,
                target=target,
                compare=not no_compare,
                overwrite=force,
                progress=progress,
            )
        print_passes(records)
        refused = sum(len(record.refusals) for record in records)
        note = f"{refused:,} nodes were left unchanged, see above" if refused else ""
    if report is not None:
        write_text(report, json.dumps([to_plain(r) for r in records], indent=1) + "\n")
    notify(f"Optimized {output}{', ' if note else ''}{note}", err=False)
