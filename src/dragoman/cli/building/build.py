"""The commands `dragoman build`, and `export` and `optimize`, its steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dragoman import DragomanError, api
from dragoman.api import BuiltBundle
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.manifest import PassRecord, Precision, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.format.plain_data import to_plain

from ..shared.engine_options import engine_option, engine_options, engine_request
from ..shared.options import (
    PATH,
    SectionedCommand,
    adapter_option,
    attention_option,
    audio_window_option,
    calibration_option,
    force_option,
    inputs_option,
    keep_fp32_option,
    limit_option,
    metric_option,
    option_names,
    output_option,
    precision_option,
    references_option,
    revision_option,
    source_language_option,
    target_language_option,
    target_option,
    threads_option,
)
from ..shared.tables import print_engines, print_parity, print_passes
from ..shared.terminal import notify, shown_progress
from .verify import VerificationFailedError


@click.command(cls=SectionedCommand)
@click.argument("checkpoint")
@output_option
@revision_option
@adapter_option
@audio_window_option
@target_option
@precision_option
@calibration_option
@keep_fp32_option
@engine_options
@engine_option(
    "--refit",
    type=PATH,
    metavar="BUNDLE",
    help="Put the checkpoint's weights into the engines of this bundle.",
)
@inputs_option
@references_option
@metric_option
@source_language_option
@target_language_option
@limit_option
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
    computes what the model computes in PyTorch, on --inputs, held-out data or random inputs;
    otherwise the exit status is 1.

    \b
    dragoman build g2p-en -o bundles/g2p-en
    dragoman build Helsinki-NLP/opus-mt-en-de -o bundles/en-de --precision int8
    dragoman build g2p-en -o bundles/g2p-en-rtx --target tensorrt-rtx --precision fp16
    """

    def compared(graphs: Bundle, parity: Parity) -> None:
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
    click.echo(f"Built {output}, parity passed{when}. Next: {next_command}")


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
@revision_option
@adapter_option
@audio_window_option
@attention_option
@force_option
def export(
    checkpoint: str,
    output: Path,
    revision: str | None,
    adapters: tuple[Path, ...],
    audio_window: float | None,
    with_attention: bool,
    force: bool,
) -> None:
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
            revision=revision,
            adapters=adapters,
            audio_window=audio_window,
            attention=with_attention,
            overwrite=force,
            progress=progress,
        )
    for note in bundle.manifest.notes:
        notify(f"Warning: {note}")
    model = checkpoint if revision is None else f"{checkpoint} --revision {revision}"
    model += "".join(f" --adapter {adapter}" for adapter in adapters)
    click.echo(f"Exported {output}, not verified. Next: dragoman verify {output} {model}")


@click.command(cls=SectionedCommand)
@click.argument("source", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Bundle or ONNX file to write.")
@target_option
@precision_option
@calibration_option
@keep_fp32_option
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
        _write_report(report, records, output)
    click.echo(f"Optimized {output}{', ' if note else ''}{note}")


def _write_report(report: Path, records: Sequence[PassRecord], output: Path) -> None:
    try:
        report.write_text(json.dumps([to_plain(r) for r in records], indent=1) + "\n", "utf-8")
    except OSError as error:
        raise DragomanError(
            f"{output} is written, the report is not: {report}: {error.strerror}"
        ) from error
