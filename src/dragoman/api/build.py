"""A checkpoint -> a verified bundle for a target: export, optimize, verify, build engines."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import Parity, PassRecord

from .preflight import check_checkpoint, check_destination, check_inputs, check_target

if TYPE_CHECKING:
    from dragoman.benchmarks.parity import ParityInputs


@dataclass(frozen=True)
class BuiltBundle:
    """
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
    target: str | None = None,
    precision: Precision = "fp32",
    calibration: Path | None = None,
    engines: EngineRequest | None = None,
    refit: Path | None = None,
    inputs: Path | None = None,
    limit: int | None = None,
    threads: int | None = None,
    keep_failed: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuiltBundle:
    """Export a checkpoint, optimize it for a target and verify the result.

    For the TensorRT targets, parity is checked on ONNX Runtime before engines are built; for
    tensorrt-rtx, neither needs a GPU.

    Args:
        checkpoint: a directory as its library wrote it, or the name of a checkpoint that comes with
            Dragoman, such as "g2p-en"
        output: the bundle's directory, which appears whole, and only if parity holds
        target: a row of `optimize.targets.TARGETS`; None: the first that offers the precision
        calibration: a file of texts, one per line, or a directory of audio clips, to choose scales
            and number formats on; None: random inputs
        engines: options of engines; None: the defaults
        refit: a bundle whose engines get the checkpoint's weights, in place of new engines
        inputs: what to verify on: a file of texts, one per line, references after tabs, or a
            directory of audio clips; None: the checkpoint's held-out data, or random inputs if it
            has none
        limit: the most inputs to verify on; None: all
        threads: processor threads for the bundle; all cores if None
        keep_failed: whether to keep a bundle that fails, marked as failed in its manifest
        overwrite: whether to replace an existing bundle

    Raises:
        ParityFailedError: the bundle does not compute what the checkpoint does.
        CheckpointError, ConfigError: the model cannot be read; lists all problems.
        BackendError: the target's package is missing.
        PassError, EngineError: a graph cannot be optimized or built; names the pass or the node.
        DragomanError: a path or an option is wrong, or the output cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    old = None
    if refit is not None:
        old = read_bundle(refit)
        if engines is not None:
            raise DragomanError(
                f"refit: expected no options for engines, those of {refit} keep theirs"
            )
        from dragoman.optimize.tensorrt.refit import check_refittable

        check_refittable(old)
        target, precision = old.manifest.target, old.manifest.precision
    chosen, request = check_target(target, precision, engines)
    check_destination(output, overwrite)
    check_inputs(inputs, calibration)
    check_checkpoint(checkpoint)

    from dragoman.benchmarks.parity import check_parity, inputs_for, running
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.export.opened_checkpoint import open_checkpoint
    from dragoman.runtime.format.writing import (
        BundleWriter,
        ScratchWriter,
        new_directory,
        write_manifest,
    )

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(checkpoint)
    if request is not None and old is None:  # refuse before anything takes time
        config = opened.model.config
        request.for_model(config, config.max_target_positions)
    parity_inputs = inputs_for(opened, inputs, limit)
    with new_directory(output, overwrite=overwrite) as partial, ExitStack() as stack:

        def scratch(name: str) -> Path:
            temporary = TemporaryDirectory(dir=partial.parent, prefix=f".{name}-")
            return Path(stack.enter_context(temporary))

        as_exported = (chosen.name, precision) == ("neutral", "fp32")
        neutral = export_bundle(
            opened.model,
            partial if as_exported else scratch("neutral"),
            name=opened.name,
            tokenizers=opened.tokenizers,
            writer=BundleWriter if as_exported else ScratchWriter,
            progress=progress.stage,
        )
        graphs = neutral
        if not as_exported:
            from dragoman.benchmarks.parity.sources import calibration_sources
            from dragoman.optimize.target_bundle import optimize_bundle

            graphs = optimize_bundle(
                neutral,
                partial if request is None else scratch("graphs"),
                target=chosen.name,
                precision=precision,
                calibration=calibration_sources(neutral, calibration) if calibration else None,
                writer=BundleWriter if request is None else ScratchWriter,
                progress=progress.stage,
            )
        progress.stage("verifying")
        total = len(parity_inputs.sources)
        counter = _Counter(progress, total)
        with running(graphs, threads, "onnxruntime") as (model, backend):
            parity = check_parity(
                model, opened.model, parity_inputs, backend=backend, advance=counter.add
            )
        problem = "" if parity.passed else _problem(parity, neutral, graphs, parity_inputs)
        passes = graphs.manifest.passes
        if problem and not keep_failed:
            raise ParityFailedError(f"{problem}; {output} was not written", parity, passes)
        bundle, warnings = graphs, tuple[str, ...]()
        if old is not None:
            from dragoman.optimize.tensorrt.refit import refit_engines

            bundle = refit_engines(old, graphs, partial, progress=progress.stage)
        elif request is not None and chosen.recipe.finish is not None:
            manifest = graphs.manifest
            options = request.for_model(manifest.model, manifest.default_max_new_tokens)
            bundle, warnings = chosen.recipe.finish(
                graphs, partial, options, progress=progress.stage
            )
        verified = dataclasses.replace(bundle.manifest, parity=parity)
        write_manifest(verified, partial)
    built = BuiltBundle(Bundle(output, verified), parity, warnings)
    if problem:
        raise ParityFailedError(f"{problem}; {output} is marked as failed", parity, passes, built)
    return built


class _Counter:
    """Reports the sum of the counts so far."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def add(self, count: int) -> None:
        self._done += count
        self._progress.advance(self._done, self._total)


def _problem(parity: Parity, neutral: Bundle, graphs: Bundle, inputs: ParityInputs) -> str:
    from dragoman.benchmarks.parity import describe_failure
    from dragoman.benchmarks.parity.first_difference import describe_first_difference

    return (
        f"{describe_failure(parity)}; {describe_first_difference(neutral, graphs, inputs.sources)}"
    )
