"""Compares a bundle with its checkpoint, or with its known answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_unwritable
from dragoman.export.locating import locate_checkpoint
from dragoman.progress import Progress, Silent
from dragoman.runtime import load
from dragoman.runtime.answer_comparison import Outcome, compare_answers, worst
from dragoman.runtime.backends import BackendError, check_backend, default_backend, gpu_index
from dragoman.runtime.backends.machine import Machine
from dragoman.runtime.backends.tensorrt.engines import usable_package
from dragoman.runtime.format.bundle import Bundle, read_bundle, read_known_answers
from dragoman.runtime.format.known_answers import KnownAnswers
from dragoman.runtime.format.manifest import SIGNATURE_FILE, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.runtime.loading import conclude, machine_of
from dragoman.runtime.oracle_comparison import compare_with_oracle, unloaded
from dragoman.verification.verdict import describe_failure

from .preflight import check_comparison, check_inputs
from .signatures import is_signed

if TYPE_CHECKING:
    from dragoman.export.checkpoints import OpenedCheckpoint
    from dragoman.export.locating import LocatedCheckpoint
    from dragoman.optimize.step_inputs import PolygraphyFiles
    from dragoman.verification.inputs.parity_inputs import ParityInputs


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`."""

    parity: Parity
    problem: str | None
    """Sentence about the failed check and the first tensor that differs; None: parity holds."""
    not_recorded: str | None = None
    """Why the figures could not be written into the manifest; None: no failure."""

    @property
    def passed(self) -> bool:
        """Whether parity holds."""
        return self.parity.passed


def verify(
    bundle: str | Path,
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    adapters: Sequence[str | Path] = (),
    inputs: str | Path | None = None,
    references: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    limit: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    record: bool | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare tensors, tokens and metrics of a bundle with the PyTorch model of its checkpoint.

    Args:
        checkpoint, revision, adapters: see `build`
        inputs: file of texts, one per line, with optional references after tabs (for an
            encoder-only model, in the format of `dragoman encode`); directory of audio clips; or
            list of clips, with optional transcripts after tabs. None: the sources of `references`,
            else the checkpoint's held-out data, else a spoken sentence or random
            tokens
        references: file of references, one per input, or of tab-separated sources and references
            (for speech, paths relative to the file and transcripts), for probabilities and
            metrics. None: those in `inputs`, if every line has one
        metrics: names in `metrics.METRIC_NAMES`, the most important first; None: the default
            metrics of the model's task
        source_language, target_language: of the references; None: the model's defaults
        limit: maximum number of inputs; None: all
        backend, device: see `runtime.load`
        threads: processor threads for the bundle; None: all cores
        record: whether to write the figures into the manifest, which invalidates a signature; None:
            only without a limit and if the bundle is not signed

    Raises:
        BundleError: the bundle is damaged.
        BackendError: the bundle cannot run on this machine.
        DragomanError: a path is wrong, the bundle belongs to another model, or `record` is True and
            the bundle is signed.
    """
    progress = progress or Silent()
    read = read_bundle(Path(bundle))
    if record and is_signed(bundle):
        raise DragomanError(
            f"{bundle} is signed: recording the figures in its manifest would break the signature: "
            f"verify it without, or remove {SIGNATURE_FILE} and sign it again afterwards"
        )
    check_backend(read, backend, device)
    _check_engines(read, device)
    comparison = check_comparison(
        threads,
        inputs=inputs,
        limit=limit,
        references=references,
        metrics=metrics,
        source_language=source_language,
        target_language=target_language,
    )
    located = locate_checkpoint(checkpoint, revision, progress, adapters)

    from dragoman.runtime.format.writing import record_parity
    from dragoman.verification.inputs.choosing import inputs_for

    from .steps import compare

    progress.stage("reading the checkpoint")
    opened = open_like(read, located)
    check_same_model(read, opened, checkpoint)
    parity_inputs = inputs_for(opened, comparison)
    parity = compare(read, opened, parity_inputs, threads, backend, progress, device)
    not_recorded = None
    if record if record is not None else limit is None and not is_signed(bundle):
        try:
            record_parity(read, parity)
        except DragomanError as error:  # the figures are still reported
            not_recorded = str(error)
    problem = None if parity.passed else _problem(parity, read, opened, parity_inputs, progress)
    return Verification(parity, problem, not_recorded)


@dataclass(frozen=True)
class AnswersVerification:
    """The outcome of `verify_known_answers`."""

    inputs: tuple[str, ...]
    """Names of the inputs."""
    runs: dict[str, tuple[str | None, ...]]
    """What differs for each input, by name of the run; None: nothing."""
    gaps: tuple[float, ...]
    """The largest difference of each input's log-probabilities or margins in nats; for an
    encoder-only model, of its output as a share of its size."""
    machine: str
    """Processor or GPU, and versions of libraries."""
    problem: str | None
    """Sentence about what differs; None: every output is as it was at build."""
    parity: Parity | None = None
    """Tensors, tokens and distributions compared with the outputs of the trained model that the
    bundle stores; None: it stores none, as it runs on the processor only."""

    @property
    def passed(self) -> bool:
        """Whether every output is as it was at build."""
        return self.problem is None


def verify_known_answers(
    bundle: str | Path,
    *,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> AnswersVerification:
    """Compare the outputs of a bundle on this machine with its known answers, without a checkpoint.

    Every input runs alone, in one batch and in reversed order, on one thread and on all. A bundle
    that may run on a GPU is also compared with the trained model's outputs that it stores. Only if
    all are right, `load` need not check them on this machine again.

    Args:
        backend, device: see `runtime.load`
        threads: the most processor threads; None: all cores

    Raises:
        BundleError: the bundle is damaged.
        BackendError: the bundle cannot run on this machine.
        DragomanError: the bundle has no known answers.
    """
    read = read_bundle(Path(bundle))
    known = read_known_answers(read)
    if known is None:
        raise DragomanError(
            f"{bundle}: expected a bundle with known answers, which dragoman build writes, found "
            "none: name the CHECKPOINT to compare with"
        )
    answers, runs = known.answers, dict[str, list[Outcome]]()
    ran_on = check_backend(read, backend, device).name
    _check_engines(read, device)
    machine = machine_of(read, ran_on, gpu_index(device) or 0)
    with load(read, threads=1, backend=backend, device=device, check="never") as model:
        runs["alone"] = [
            outcome for answer in answers for outcome in compare_answers(model, known, [answer])
        ]
        runs["in a batch"] = compare_answers(model, known, answers, margins=True)
    with load(read, threads=threads, backend=backend, device=device, check="never") as model:
        runs["all threads"] = compare_answers(model, known, answers, margins=True)
        runs["reversed"] = compare_answers(model, known, answers[::-1])[::-1]
        found = worst(list(runs.values()))
        parity = compare_with_oracle(model, known, found, backend=_named(ran_on, machine))
    failure = None
    if parity is not None and not parity.passed:
        failure = f"{read.manifest.name} on {parity.backend}: {describe_failure(parity)}"
    problem = conclude(read, known, found, machine, failure)
    return AnswersVerification(
        tuple(answer.name for answer in answers),
        {name: tuple(o.problem for o in outcomes) for name, outcomes in runs.items()},
        tuple(outcome.gap for outcome in found),
        str(machine),
        problem,
        parity,
    )


def compare_engines(
    bundle: Bundle, engines: TensorRTEngines, known: KnownAnswers | None
) -> tuple[Parity | None, str | None]:
    """Compare the outputs of engines with those of the trained model, if this machine runs them.

    Args:
        known: store the outputs of the trained model; None: the bundle has none

    Returns:
        the figures, or why the engines were not run
    """
    try:
        usable_package(bundle, engines)
    except BackendError as error:
        return None, _without_directory(error, bundle)
    ran_on = default_backend(bundle)
    backend = _named(ran_on, machine_of(bundle, ran_on))
    try:
        with load(bundle, check="never") as model:
            parity = None
            if known is not None:
                outcomes = compare_answers(model, known, known.answers, margins=True)
                parity = compare_with_oracle(model, known, outcomes, backend=backend)
    except BackendError as error:  # an engine that cannot be loaded
        parity = unloaded(_without_directory(error, bundle), backend)
    return parity, None if parity else "no stored output of the trained model fits them"


def _without_directory(error: BackendError, bundle: Bundle) -> str:
    text = str(error).removeprefix(f"{bundle.directory}: ")
    return text.replace(f"{bundle.directory}/", "")


def _check_engines(bundle: Bundle, device: str | None) -> None:
    engines = bundle.manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return
    try:
        usable_package(bundle, engines, gpu_index(device) or 0)
    except BackendError as error:
        if engines.parity is None:
            raise BackendError(f"engines not run: {error}") from error
        raise


def _named(backend: str, machine: Machine) -> str:
    return backend if machine.gpu is None else f"{backend}, {machine.gpu.name}"


def open_like(bundle: Bundle, located: LocatedCheckpoint) -> OpenedCheckpoint:
    """Read a checkpoint, whose window of audio is shortened if that of a bundle is."""
    from dragoman.export.checkpoints import open_checkpoint, shorten_window
    from dragoman.export.exporter import audio_features

    opened = open_checkpoint(located)
    audio, own = bundle.manifest.audio, audio_features(opened.model.config)
    if audio is not None and own is not None and audio.chunk_seconds < own.chunk_seconds:
        shorten_window(opened.model, audio.chunk_seconds)
    return opened


def check_same_model(bundle: Bundle, checkpoint: OpenedCheckpoint, name: str | Path) -> None:
    """Check that a bundle has the configuration of a checkpoint's model, and the same adapters."""
    from dragoman.verification.stored.settings import stated_architecture

    recorded, given = bundle.manifest.adapters, checkpoint.adapters
    if [adapter.sha256 for adapter in recorded] != [adapter.sha256 for adapter in given]:
        made, found = (
            ", ".join(f"{a.name} (SHA-256 {a.sha256[:8]}...)" for a in adapters) or "none"
            for adapters in (recorded, given)
        )
        raise DragomanError(
            f"adapters: expected those that {bundle.directory} was made with, {made}, in this "
            f"order; found {found}"
        )
    expected = checkpoint.model.config.to_dict()
    stated = stated_architecture(bundle.manifest, checkpoint.model)
    if stated != expected:
        differing = [field for field, value in expected.items() if stated.get(field) != value]
        raise DragomanError(
            f"{bundle.directory} was not made from a model like {name}: their configurations "
            f"differ in {', '.join(differing)}"
        )


def _problem(
    parity: Parity,
    bundle: Bundle,
    checkpoint: OpenedCheckpoint,
    inputs: ParityInputs,
    progress: Progress,
) -> str | None:
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import ScratchWriter

    from .steps import can_be_located, describe_problem

    if not can_be_located(parity, bundle):
        return describe_failure(parity)
    with TemporaryDirectory() as directory:
        try:
            neutral = export_bundle(
                checkpoint.model,
                Path(directory),
                name=checkpoint.name,
                writer=ScratchWriter,
                progress=progress.stage,
            )
            return describe_problem(parity, neutral, bundle, inputs)
        except (DragomanError, OSError) as error:  # the failure is still reported
            where = f"the first differing tensor cannot be located ({error})"
            return f"{describe_failure(parity)}; {where}"


def write_polygraphy(
    bundle: str | Path,
    directory: str | Path,
    *,
    graphs: str | Path | None = None,
    inputs: str | Path | None = None,
) -> PolygraphyFiles:
    """Write inputs of the graphs as files for Polygraphy, with the commands to run.

    Decoder inputs are those of the first two, a middle and the last step. Numbers are text, which
    takes a third more space.

    Args:
        directory: new directory, written atomically
        graphs: bundle with ONNX graphs of the same model, to compare with; required for engines
        inputs: file of texts, one per line, or directory of audio clips; None: random inputs

    Raises:
        BundleError: a bundle is damaged.
        BackendError: ONNX Runtime cannot run the graphs.
        DragomanError: a path is wrong, the graphs are missing or belong to another model, the
            bundle is in bf16, or the directory cannot be written.
    """
    directory = Path(directory)
    read = read_bundle(Path(bundle))
    compared = None if graphs is None else read_bundle(Path(graphs))
    if directory.exists():
        raise DragomanError(f"{directory} already exists: choose another name, or remove it")
    refuse_unwritable(directory)
    file = check_inputs(inputs)
    _check_compared(read, compared)

    from dragoman.optimize.step_inputs import write_polygraphy_files

    sources = None
    if file is not None:
        from dragoman.verification.inputs.sources import calibration_sources

        sources = calibration_sources(compared or read, file).encodable
    return write_polygraphy_files(read, directory, graphs=compared, sources=sources)


def _check_compared(bundle: Bundle, graphs: Bundle | None) -> None:
    if graphs is None:
        if bundle.manifest.executable.format != "onnx":
            raise DragomanError(
                f"{bundle.directory}: expected graphs of the same model besides engines (graphs; "
                "--graphs): a bundle that ONNX Runtime can run, such as one of target neutral"
            )
        return
    if graphs.manifest.executable.format != "onnx":
        raise DragomanError(f"{graphs.directory}: expected ONNX graphs, found engines")
    if graphs.manifest.architecture != bundle.manifest.architecture:
        raise DragomanError(
            f"{graphs.directory} holds another model than {bundle.directory}: expected the same "
            "architecture"
        )
