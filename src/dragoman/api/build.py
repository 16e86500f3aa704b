"""Exports a checkpoint to a neutral bundle, or builds a verified bundle for a target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.optimize.tensorrt.request import EngineRequest, check_refittable
from dragoman.progress import Progress, Silent, resident_mb
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.manifest import BuildRecord, PassRecord, Precision, TensorRTEngines
from dragoman.runtime.format.parity import Parity

from .preflight import (
    check_calibration,
    check_comparison,
    check_kept,
    check_library,
    check_memory,
    check_output,
    check_room,
    check_shortlist,
    check_target,
)
from .verify import compare_engines


@dataclass(frozen=True)
class BuiltBundle:
    """A bundle that `build` wrote."""

    bundle: Bundle
    parity: Parity
    """Parity figures recorded in the bundle."""
    warnings: tuple[str, ...] = ()
    not_run: str | None = None
    """Why engines were not compared with the trained model; None: they were, and the manifest's
    `executable` has the figures, or there are none."""


class ParityFailedError(DragomanError):
    """A bundle does not match its checkpoint.

    Attributes:
        parity: parity figures
        kept: directory of the bundle, marked as failed; None: not written
    """

    def __init__(
        self,
        message: str,
        parity: Parity,
        passes: tuple[PassRecord, ...],
        kept: BuiltBundle | None = None,
    ) -> None:
        super().__init__(message)
        self.parity, self.passes, self.kept = parity, passes, kept


def build(
    checkpoint: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    adapters: Sequence[str | Path] = (),
    audio_window: float | None = None,
    target: str | None = None,
    precision: Precision = "fp32",
    calibration: str | Path | None = None,
    keep_fp32: Sequence[str] = (),
    engines: EngineRequest | None = None,
    refit: str | Path | None = None,
    inputs: str | Path | None = None,
    references: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    limit: int | None = None,
    threads: int | None = None,
    keep_failed: bool = False,
    attention: bool = False,
    shortlist: str | Path | None = None,
    shortlist_from: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    compared: Callable[[Bundle, Parity], None] | None = None,
) -> BuiltBundle:
    """Export a checkpoint, optimize it for a target and verify the result.

    For the TensorRT targets, parity is checked in ONNX Runtime before engines are built. Where a
    GPU runs the engines, their own outputs are compared, too; elsewhere, the manifest has no
    figures of them.

    Args:
        checkpoint: directory; id of a model at the Hugging Face Hub, such as
            "Helsinki-NLP/opus-mt-en-de"; or name of a shipped model, such as "g2p-en"
        output: directory of the bundle, written atomically and only if parity holds
        revision: branch, tag or commit of a model at the hub; None: main
        adapters: directories of LoRA adapters of PEFT, merged into the weights in this order
        audio_window: seconds of audio that a speech model's encoder reads at once, fewer than it
            was trained with, which is faster and less exact; None: as many
        target: name in `optimize.targets.TARGETS`; None: the first that offers the precision
        calibration: inputs that determine scales and number formats: a file of texts, one per line
            (for an encoder-only model, in the format of `dragoman encode`), or a directory of
            audio clips; None: random inputs
        keep_fp32: names of products, modules or layers, as listed by `sensitivity`, whose weights
            are not quantized
        refit: bundle whose engines are refitted with the checkpoint's weights
        inputs, references, metrics, source_language, target_language, limit: see `verify`
        threads: processor threads for the bundle; None: all cores
        keep_failed: whether to keep a bundle that fails, marked as failed in its manifest
        attention: whether to add the attention graph; not with engines
        shortlist: a file that lists the target tokens that source tokens allow, to decode with
            those of a source only; not with engines
        shortlist_from: a file of pairs of texts, with tabs between them, to learn such a list from
        overwrite: whether to replace an existing bundle
        compared: called with the graphs and parity figures before engines are built

    Raises:
        ParityFailedError: the bundle or its engines do not match the checkpoint.
        CheckpointError, ConfigError: the model cannot be read; the error lists all problems.
        BackendError: the target's package is missing.
        PassError, EngineError: a graph cannot be optimized or built.
        DragomanError: a path or an option is wrong, or the output cannot be written.
    """
    began = time.monotonic()
    progress, output = progress or Silent(), Path(output)
    old = None
    if refit is not None:
        old = read_bundle(Path(refit))
        if engines is not None:
            raise DragomanError(
                f"refit: expected no options for engines, since those of {refit} keep theirs"
            )
        check_refittable(old)
        target, precision = old.manifest.target, old.manifest.precision
    chosen, request = check_target(target, precision, engines)
    check_library(chosen.name)
    if attention and chosen.executable != "onnx":
        raise DragomanError(
            f"attention: expected a target of graphs, found {chosen.name}: engines do not show "
            "attention; build another bundle for it"
        )
    check_shortlist(shortlist, shortlist_from, chosen, precision)
    check_output(output, overwrite)
    comparison = check_comparison(
        threads,
        inputs=inputs,
        limit=limit,
        references=references,
        metrics=metrics,
        source_language=source_language,
        target_language=target_language,
    )
    calibrated_on = check_calibration(calibration, precision)
    check_kept(keep_fp32, chosen, precision)
    located = locate_checkpoint(checkpoint, revision, progress, adapters)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.exporter import model_spec
    from dragoman.export.shortlists import check_shortlist_model, learned_shortlist, shortlist_of
    from dragoman.onnx_graphs.shortlist_graphs import add_shortlist
    from dragoman.runtime.format.writing import add_known_answers, new_directory, write_manifest
    from dragoman.verification.checks.shortlist import shortlist_warnings
    from dragoman.verification.inputs.choosing import inputs_for
    from dragoman.verification.known_answers import fitting, make_known_answers
    from dragoman.verification.verdict import describe_failure

    from .optimize import finish, scratch_directories
    from .steps import compare, describe_problem, make_graphs

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located, audio_window)
    spec = model_spec(opened.model.config)
    chosen.check_model(has_decoder=spec.has_decoder)
    if shortlist is not None or shortlist_from is not None:
        check_shortlist_model(spec)
    if request is not None and old is None:  # fail early
        config = opened.model.config
        request.for_model(config, config.max_target_positions)
    weights = sum(parameter.numel() for parameter in opened.model.parameters())
    check_room(output, weights, precision)
    check_memory(weights, precision)
    parity_inputs = inputs_for(opened, comparison)
    with (
        new_directory(output, overwrite=overwrite) as partial,
        scratch_directories(partial) as scratch,
    ):
        neutral, graphs = make_graphs(
            opened,
            partial,
            scratch,
            chosen,
            precision,
            calibrated_on,
            progress,
            attention=attention,
            keep_fp32=keep_fp32,
        )
        if shortlist is not None:
            progress.stage("adding the shortlist")
            graphs = add_shortlist(graphs, shortlist_of(Path(shortlist), graphs))
        elif shortlist_from is not None:
            progress.stage("learning the shortlist")
            learned = learned_shortlist(Path(shortlist_from), graphs, source_language)
            graphs = add_shortlist(graphs, learned)
        parity = compare(graphs, opened, parity_inputs, threads, None, progress)
        if compared is not None:
            compared(graphs, parity)
        problem = describe_problem(parity, neutral, graphs, parity_inputs)
        passes = graphs.manifest.passes
        if problem is not None and not keep_failed:
            raise ParityFailedError(f"{problem}; {output} was not written", parity, passes)
        known = None
        if problem is None:
            progress.stage("computing known answers")
            known = make_known_answers(graphs, opened.model, parity_inputs, threads)
        if old is None:
            bundle, warnings = finish(graphs, partial, chosen, request, progress)
        else:
            from dragoman.optimize.tensorrt.engine_bundle import refit_engines

            bundle, warnings = refit_engines(old, graphs, partial, progress=progress.stage), ()
        verified = dataclasses.replace(bundle.manifest, parity=parity)
        if parity.shortlist is not None:
            warnings = (*warnings, *shortlist_warnings(parity.shortlist))
        if known is not None:
            known = fitting(known, verified)
        if known is not None and known.at_load:
            verified = add_known_answers(known, verified, partial)
        not_run = None
        if isinstance(verified.executable, TensorRTEngines):
            progress.stage("comparing the engines' outputs")
            written = Bundle(partial, verified)
            found, not_run = compare_engines(written, verified.executable, known)
            if found is not None and not found.passed:
                problem = f"engines on {found.backend}: {describe_failure(found)}"
                if not keep_failed:
                    raise ParityFailedError(f"{problem}; {output} was not written", found, passes)
            executable = dataclasses.replace(verified.executable, parity=found)
            verified = dataclasses.replace(verified, executable=executable)
        taken = BuildRecord(round(time.monotonic() - began, 1), round(resident_mb()[1], 1))
        verified = dataclasses.replace(verified, build=taken)
        write_manifest(verified, partial)
    built = BuiltBundle(Bundle(output, verified), parity, warnings, not_run)
    if problem is not None:
        raise ParityFailedError(f"{problem}; {output} is marked as failed", parity, passes, built)
    return built


def export(
    checkpoint: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    adapters: Sequence[str | Path] = (),
    audio_window: float | None = None,
    attention: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a checkpoint to a bundle of neutral ONNX graphs in fp32 and opset 24, not verified.

    Args:
        checkpoint, revision, adapters, audio_window, attention: see `build`
        output: directory of the bundle, written atomically
        overwrite: whether to replace an existing bundle

    Raises:
        CheckpointError, ConfigError: the model cannot be read; the error lists all problems.
        ContractError: an exported graph breaks the graph contract.
        DragomanError: a path is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    check_output(output, overwrite)
    located = locate_checkpoint(checkpoint, revision, progress, adapters)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import new_directory

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located, audio_window)
    with new_directory(output, overwrite=overwrite) as partial:
        bundle = export_bundle(
            opened.model,
            partial,
            name=opened.name,
            tokenizers=opened.tokenizers,
            notes=opened.notes,
            origin=opened.origin,
            adapters=opened.adapters,
            attention=attention,
            progress=progress.stage,
        )
    return Bundle(output, bundle.manifest)
