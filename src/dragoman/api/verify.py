"""Compares a bundle with its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.export.locating import locate_checkpoint
from dragoman.progress import Progress, Silent
from dragoman.runtime.backends import check_backend
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.runtime.format.parity import Parity

from .preflight import check_comparison
from .signatures import SIGNATURE_FILE, is_signed

if TYPE_CHECKING:
    from dragoman.export.checkpoints import OpenedCheckpoint
    from dragoman.verification.inputs.parity_inputs import ParityInputs


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`.

    Attributes:
        problem: what failed and which tensor differs first, as a sentence; None if parity holds
        not_recorded: why the figures could not be written into the manifest; None if they were, or
            if they should not be
    """

    parity: Parity
    problem: str | None
    not_recorded: str | None = None

    @property
    def passed(self) -> bool:
        """Whether parity holds."""
        return self.parity.passed


def verify(
    bundle: str | Path,
    checkpoint: str | Path,
    *,
    revision: str | None = None,
    inputs: str | Path | None = None,
    references: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    limit: int | None = None,
    backend: str | None = None,
    threads: int | None = None,
    record: bool | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare tensors, tokens and metrics of a bundle with the PyTorch model of its checkpoint.

    Args:
        checkpoint: a directory as its library wrote it; the id of a model at the Hugging Face Hub,
            such as "Helsinki-NLP/opus-mt-en-de"; or the name of one that comes with Dragoman, such
            as "g2p-en"
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        inputs: a file of texts, one per line, references after tabs (for an encoder-only model,
            lines as `dragoman encode` takes them); or a directory of audio clips, or a list of
            them, transcripts after tabs; None: the sources of `references`, the checkpoint's
            held-out data, or random inputs if it has none
        references: a file whose lines are a source, a tab and a reference (for speech, a path
            relative to the file and a transcript), or only references, one for each input; None:
            the references after tabs in `inputs`, if every line has one. Their probability is
            compared, and metrics compare outputs with them
        metrics: of `metrics.METRIC_NAMES`, the most important one first; None: the usual ones of
            the model's task
        source_language, target_language: of a multilingual model, for references that are not in
            its default languages
        limit: the most inputs, with their references; None: all
        backend: see `runtime.load`
        threads: processor threads for the bundle; all cores if None
        record: whether to write the figures into the manifest; None: only without a limit, and not
            into a bundle that is signed, which would no longer be what was signed
        progress: notified of each stage as it begins, and how much of it is done

    Raises:
        BundleError: the bundle is damaged.
        BackendError: it cannot run here.
        DragomanError: a path is wrong, the bundle was made from another model, or it is signed and
            the figures are to be recorded.
    """
    progress = progress or Silent()
    read = read_bundle(Path(bundle))
    if record and is_signed(bundle):
        raise DragomanError(
            f"{bundle} is signed: recording the figures in its manifest would break the signature: "
            f"verify it without, or remove {SIGNATURE_FILE} and sign it again afterwards"
        )
    check_backend(read, backend)
    comparison = check_comparison(
        threads,
        inputs=inputs,
        limit=limit,
        references=references,
        metrics=metrics,
        source_language=source_language,
        target_language=target_language,
    )
    located = locate_checkpoint(checkpoint, revision, progress)

    from dragoman.export.checkpoints import open_checkpoint
    from dragoman.runtime.format.writing import record_parity
    from dragoman.verification.inputs.choosing import inputs_for

    from .steps import compare

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    check_same_model(read, opened, checkpoint)
    parity_inputs = inputs_for(opened, comparison)
    parity = compare(read, opened, parity_inputs, threads, backend, progress)
    not_recorded = None
    if record if record is not None else limit is None and not is_signed(bundle):
        try:
            record_parity(read, parity)
        except DragomanError as error:  # the figures are still reported
            not_recorded = str(error)
    problem = None if parity.passed else _problem(parity, read, opened, parity_inputs, progress)
    return Verification(parity, problem, not_recorded)


def check_same_model(bundle: Bundle, checkpoint: OpenedCheckpoint, name: str | Path) -> None:
    """Check that a bundle was made from a model of a checkpoint's configuration.

    Raises:
        DragomanError: the bundle was made from a model of another configuration.
    """
    from dragoman.verification.stored.settings import stated_architecture

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
    """Describe what failed, and export the model again to find the first tensor that differs."""
    from dragoman.export.neutral_bundle import export_bundle
    from dragoman.runtime.format.writing import ScratchWriter
    from dragoman.verification.verdict import describe_failure

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
