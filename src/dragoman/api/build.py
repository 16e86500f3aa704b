"""Exports a checkpoint to a neutral bundle, or builds a verified bundle for a target from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.optimize.tensorrt.request import EngineRequest, check_refittable
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.manifest import PassRecord, Precision
from dragoman.runtime.format.parity import Parity

from .preflight import (
    check_calibration,
    check_comparison,
    check_kept,
    check_output,
    check_target,
)


@dataclass(frozen=True)
class BuiltBundle:
    """A bundle that `build` wrote.

    Attributes:
        parity: as recorded in the bundle
        warnings: about engines, a line each
    """

    bundle: Bundle
    parity: Parity
    warnings: tuple[str, ...] = ()


class ParityFailedError(DragomanError):
    """A bundle does not compute what its checkpoint does.

    Attributes:
        parity: the figures
        passes: what each pass did to the graphs
        kept: the bundle, marked as failed; None: it was not written
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
    overwrite: bool = False,
    progress: Progress | None = None,
    compared: Callable[[Bundle, Parity], None] | None = None,
) -> BuiltBundle:
    """Export a checkpoint, optimize it for a target and verify the result.

    For the TensorRT targets, parity is checked on ONNX Runtime before engines are built; for
    tensorrt-rtx, neither needs a GPU.

    Args:
        checkpoint: a directory as its library wrote it; the id of a model at the Hugging Face Hub,
            such as "Helsinki-NLP/opus-mt-en-de"; or the name of one that comes with Dragoman, such
            as "g2p-en"
        output: the bundle's directory, which appears whole, and only if parity holds
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        target: a row of `optimize.targets.TARGETS`; None: the first that offers the precision
        precision: fp32, fp16, bf16, int8 or int4
        calibration: a file of texts, one per line, or a directory of audio clips, to choose scales
            and number formats on; for an encoder-only model, lines as `dragoman encode` takes them;
            None: random inputs
        keep_fp32: names of products, modules or layers, as `sensitivity` lists them, whose weights
            int8 and int4 leave in fp32
        engines: options of engines; None: the defaults
        refit: a bundle whose engines get the checkpoint's weights, in place of new engines
        inputs, references, metrics, source_language, target_language, limit: what to verify on, as
            for `verify`
        threads: processor threads for the bundle; all cores if None
        keep_failed: whether to keep a bundle that fails, marked as failed in its manifest
        attention: whether to add the graph that shows attention; not with engines
        overwrite: whether to replace an existing bundle
        progress: notified of each stage as it begins, and how much of it is done
        compared: called with the graphs and the figures once they are known, before engines are
            built, which may take minutes

    Raises:
        ParityFailedError: the bundle does not compute what the checkpoint does.
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        BackendError: the target's package is missing.
        PassError, EngineError: a graph cannot be optimized or built; names the pass or the node.
        DragomanError: a path or an option is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    old = None if refit is None else _refittable(refit, engines)
    if old is not None:
        target, precision = old.manifest.target, old.manifest.precision
    chosen, request = check_target(target, precision, engines)
    if attention and chosen.executable != "onnx":
        raise DragomanError(
            f"attention: expected a target of graphs, found {chosen.name}: engines do not show "
            "attention; build another bundle for it"
        )
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
    located = locate_checkpoint(checkpoint, revision, progress)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.runtime.format.writing import new_directory, write_manifest
    from dragoman.verification.inputs.choosing import inputs_for

    from .optimize import finish, scratch_directories
    from .steps import compare, describe_problem, make_graphs

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    if request is not None and old is None:  # refuse before anything takes time
        config = opened.model.config
        request.for_model(config, config.max_target_positions)
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
        parity = compare(graphs, opened, parity_inputs, threads, "onnxruntime", progress)
        if compared is not None:
            compared(graphs, parity)
        problem = describe_problem(parity, neutral, graphs, parity_inputs)
        passes = graphs.manifest.passes
        if problem is not None and not keep_failed:
            raise ParityFailedError(f"{problem}; {output} was not written", parity, passes)
        if old is None:
            bundle, warnings = finish(graphs, partial, chosen, request, progress)
        else:
            from dragoman.optimize.tensorrt.refit import refit_engines

            bundle, warnings = refit_engines(old, graphs, partial, progress=progress.stage), ()
        verified = dataclasses.replace(bundle.manifest, parity=parity)
        write_manifest(verified, partial)
    built = BuiltBundle(Bundle(output, verified), parity, warnings)
    if problem is not None:
        raise ParityFailedError(f"{problem}; {output} is marked as failed", parity, passes, built)
    return built


def _refittable(refit: str | Path, engines: EngineRequest | None) -> Bundle:
    """Read the bundle whose engines get new weights."""
    old = read_bundle(Path(refit))
    if engines is not None:
        raise DragomanError(
            f"refit: expected no options for engines, since those of {refit} keep theirs"
        )
    check_refittable(old)
    return old


def export(
    checkpoint: str | Path,
    output: str | Path,
    *,
    revision: str | None = None,
    attention: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export a checkpoint to a bundle of neutral ONNX graphs: opset 24, fp32, not verified.

    Args:
        checkpoint: a directory as its library wrote it; the id of a model at the Hugging Face Hub,
            such as "Helsinki-NLP/opus-mt-en-de"; or the name of one that comes with Dragoman, such
            as "g2p-en"
        output: the bundle's directory, which appears whole or not at all
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        attention: whether to add the graph that shows attention
        overwrite: whether to replace an existing bundle
        progress: notified of each stage as it begins, and how much of it is done

    Raises:
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        ContractError: an exported graph breaks the graph contract.
        DragomanError: a path is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    check_output(output, overwrite)
    located = locate_checkpoint(checkpoint, revision, progress)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import new_directory

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    with new_directory(output, overwrite=overwrite) as partial:
        bundle = export_bundle(
            opened.model,
            partial,
            name=opened.name,
            tokenizers=opened.tokenizers,
            notes=opened.notes,
            origin=opened.origin,
            attention=attention,
            progress=progress.stage,
        )
    return Bundle(output, bundle.manifest)
