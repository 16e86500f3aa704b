"""Bundles -> one page for those who sign a deployment off, and those who debug one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.export.locating import LocatedCheckpoint, locate_checkpoint
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle
from dragoman.whole_files import write_whole

from .preflight import check_comparison, check_texts
from .sensitivity import check_measurable, sensitivity
from .signatures import is_signed

if TYPE_CHECKING:
    from dragoman.benchmarks.report.contents import Report
    from dragoman.benchmarks.sensitivity.results import Sensitivity


def report(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    checkpoint: str | Path | None = None,
    revision: str | None = None,
    sensitivities: Sequence[str | Path] = (),
    inputs: str | Path | None = None,
    threads: int | None = None,
    measurements: bool = True,
    json: str | Path | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Write what bundles are, how they compare with the trained model, where their precision
    hurts, what their passes did, and their size, memory and speed, as one page of HTML that needs
    nothing else.

    Parity is what the manifests record; `verify` records it.

    Args:
        bundles: directories; the first is compared with the others
        output: the page, which appears whole or not at all
        checkpoint: that the bundles were made from, whose licences are read and on whose held-out
            data attention is shown, see `build`. Sensitivities that are not given are measured. A
            bundle that was not made from a model like it has none of these
        revision: of a model at the hub: a branch, a tag or a commit; None: main
        sensitivities: files that `Sensitivity.write` wrote, of any of the bundles
        inputs: to show attention on, of bundles with the graph for it: a file of texts, one per
            line, or a directory of audio clips; None: the checkpoint's held-out data
        threads: processor threads; all cores if None
        measurements: whether to measure speed, load time, memory, and sensitivities
        json: a file for the same as JSON, which is in the page, too
        overwrite: whether to replace existing files
        command: that asked for it, for the page
        progress: told of each stage as it begins, and how much of it is done

    Returns:
        what the page says

    Raises:
        BundleError: a bundle is damaged.
        ModuleNotFoundError: a library of the extra `report` is missing, or, with a checkpoint, of
            the extra `export`.
        DragomanError: a path is wrong, the checkpoint cannot be read or is that of none of the
            bundles, a sensitivity is of another bundle, or a file cannot be written.
    """
    progress, output = progress or Silent(), Path(output)
    written = [output, *([] if json is None else [Path(json)])]
    if len({path.resolve() for path in written}) < len(written):
        raise DragomanError(f"json: expected another file than the page, found {json}")
    for path in written:
        refuse_existing(path, overwrite)
        refuse_unwritable_file(path)
    if not bundles:
        raise DragomanError("bundles: expected at least one, found none")
    if len({Path(bundle).resolve() for bundle in bundles}) < len(bundles):
        raise DragomanError("bundles: expected each once, found one of them twice")
    read = [read_bundle(Path(bundle)) for bundle in bundles]
    shown_on = check_comparison(threads, inputs=inputs).inputs
    if shown_on is not None and not any(bundle.manifest.model.takes_audio for bundle in read):
        check_texts(shown_on)
    if checkpoint is None and revision is not None:
        raise DragomanError(f"revision: expected one only with a checkpoint, found {revision}")

    from dragoman.benchmarks.sensitivity.results import read_sensitivity

    given = [read_sensitivity(Path(file)) for file in sensitivities]
    located = None if checkpoint is None else locate_checkpoint(checkpoint, revision, progress)

    from dragoman.benchmarks.report.gathering import Wanted, gather, matched
    from dragoman.benchmarks.report.page import render

    known = matched(read, given)
    foreign: dict[Path, str] = {}
    if checkpoint is not None and located is not None:
        foreign = _foreign(read, located, checkpoint, progress)
    unmeasured = dict(foreign)
    if checkpoint is not None and measurements:
        for bundle in read:
            if bundle.directory not in {*known, *foreign}:
                found = _sensitivity(bundle, checkpoint, revision, shown_on, threads, progress)
                if isinstance(found, str):
                    unmeasured[bundle.directory] = found
                else:
                    known[bundle.directory] = found
    wanted = Wanted(
        checkpoint=None if located is None else located.directory,
        foreign=foreign,
        sensitivities=known,
        unmeasured=unmeasured,
        inputs=shown_on,
        held_out=_held_out(located),
        threads=threads,
        speed=measurements,
        signed=frozenset(b.directory for b in read if is_signed(b.directory)),
    )
    made = gather(read, wanted, command=command, progress=progress)
    progress.stage("drawing")
    page = render(made)
    write_whole(output, lambda partial: partial.write_text(page, encoding="utf-8"))
    if json is not None:
        text = made.to_json()
        write_whole(Path(json), lambda partial: partial.write_text(text, encoding="utf-8"))
    return made


def _foreign(
    bundles: Sequence[Bundle],
    located: LocatedCheckpoint,
    name: str | Path,
    progress: Progress,
) -> dict[Path, str]:
    """Why bundles were not made from a model like the checkpoint, by directory: a page to sign must
    not have the licences of another model.

    Raises:
        DragomanError: none was, or the checkpoint cannot be read.
    """
    from dragoman.export.opened_checkpoint import open_checkpoint

    from .verify import check_same_model

    progress.stage("reading the checkpoint")
    opened = open_checkpoint(located)
    found = {}
    for bundle in bundles:
        try:
            check_same_model(bundle, opened, name)
        except DragomanError as error:
            found[bundle.directory] = str(error)
    if len(found) == len(bundles):
        raise DragomanError("; ".join(found.values()))
    return found


def _sensitivity(
    bundle: Bundle,
    checkpoint: str | Path,
    revision: str | None,
    inputs: Path | None,
    threads: int | None,
    progress: Progress,
) -> Sensitivity | str:
    """Or why it cannot be measured: the rest of the report is worth having without."""
    try:
        check_measurable(bundle)
        return sensitivity(
            bundle.directory,
            checkpoint,
            revision=revision,
            inputs=inputs,
            threads=threads,
            progress=progress,
        )
    except DragomanError as error:
        return str(error)


def _held_out(checkpoint: LocatedCheckpoint | None) -> Path | None:
    """The checkpoint's held-out data, if it has any."""
    if checkpoint is None:
        return None

    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE

    file = checkpoint.directory / HELD_OUT_FILE
    return file if file.is_file() else None
