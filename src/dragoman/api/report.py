"""Writes a report of bundles as one HTML page, to approve or debug a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_existing, refuse_unwritable_file
from dragoman.export.locating import LocatedCheckpoint, locate_checkpoint
from dragoman.files.regular_files import write_text
from dragoman.progress import Progress, Silent
from dragoman.runtime.format.bundle import Bundle, read_bundle

from .preflight import check_comparison, check_texts
from .sensitivity import check_measurable, sensitivity
from .signatures import is_signed

if TYPE_CHECKING:
    from dragoman.verification.report.contents import Report, Speed


def report(
    bundles: Sequence[str | Path],
    output: str | Path,
    *,
    checkpoint: str | Path | None = None,
    revision: str | None = None,
    adapters: Sequence[str | Path] = (),
    sensitivities: Sequence[str | Path] = (),
    inputs: str | Path | None = None,
    threads: int | None = None,
    measurements: bool = True,
    json: str | Path | None = None,
    overwrite: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Write a report of bundles as one self-contained HTML page.

    It describes the bundles, the training, their parity with the trained model, the sensitivity of
    each product, the passes, and size, memory and speed. Parity comes from the manifests.

    Args:
        bundles: directories; the first is the baseline
        output: HTML file, written atomically
        checkpoint: checkpoint of the bundles, see `build`; adds licences, the training, attention
            on held-out data, and missing sensitivities. Bundles of another model get none of these
        revision, adapters: see `build`
        sensitivities: files written by `Sensitivity.write` for any of the bundles
        inputs: inputs to show attention on, for bundles with an attention graph: a file of texts,
            one per line, or a directory of audio clips; None: the checkpoint's held-out data
        threads: processor threads; None: all cores
        measurements: whether to measure speed, load time, memory, and sensitivities
        json: file for the data of the page as JSON
        overwrite: whether to replace existing files
        command: command line to show on the page

    Raises:
        BundleError: a bundle is damaged.
        ModuleNotFoundError: a library of the extra `report` is missing, or, with a checkpoint, of
            the extra `export`.
        DragomanError: a path is wrong, the checkpoint cannot be read, it or a sensitivity matches
            no bundle, or a file cannot be written.
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
    if checkpoint is None and adapters:
        raise DragomanError(f"adapters: expected some only with a checkpoint, found {adapters[0]}")

    from dragoman.verification.sensitivity import read_sensitivity

    given = [read_sensitivity(Path(file)) for file in sensitivities]
    located, held_out = None, None
    if checkpoint is not None:
        located = locate_checkpoint(checkpoint, revision, progress, adapters)

    from dragoman.verification.report.gathering import Additions, gather, matched
    from dragoman.verification.report.page import render

    known = matched(read, given)
    foreign: dict[Path, str] = {}
    if checkpoint is not None and located is not None:
        from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE

        foreign = _foreign(read, located, checkpoint, progress)
        file = located.directory / HELD_OUT_FILE
        held_out = file if file.is_file() else None
    unmeasured = dict(foreign)
    if checkpoint is not None and measurements:
        for bundle in read:
            if bundle.directory not in {*known, *foreign}:
                try:
                    check_measurable(bundle)
                    known[bundle.directory] = sensitivity(
                        bundle.directory,
                        checkpoint,
                        revision=revision,
                        adapters=adapters,
                        inputs=shown_on,
                        threads=threads,
                        progress=progress,
                    )
                except DragomanError as error:
                    unmeasured[bundle.directory] = str(error)
    speeds: dict[Path, Speed | str] = {}
    measured_on = None
    if measurements:
        from dragoman.benchmarks.latency import measure_speed
        from dragoman.benchmarks.machine import machine

        progress.stage("measuring speed")
        speeds = measure_speed(read, threads=threads, advance=progress.advance)
        measured_on = machine()
    additions = Additions(
        checkpoint=None if located is None else located.directory,
        foreign=foreign,
        sensitivities=known,
        unmeasured=unmeasured,
        inputs=shown_on,
        held_out=held_out,
        threads=threads,
        speeds=speeds,
        machine=measured_on,
        signed=frozenset(b.directory for b in read if is_signed(b.directory)),
    )
    made = gather(read, additions, command=command, progress=progress)
    progress.stage("drawing")
    page = render(made)
    write_text(output, page)
    if json is not None:
        write_text(Path(json), made.to_json())
    return made


def _foreign(
    bundles: Sequence[Bundle], located: LocatedCheckpoint, name: str | Path, progress: Progress
) -> dict[Path, str]:
    """Return why bundles do not match the checkpoint, whose licences they must not show."""
    from .verify import check_same_model, open_like

    progress.stage("reading the checkpoint")
    found, opened = {}, {}
    for bundle in bundles:
        window = bundle.manifest.audio and bundle.manifest.audio.chunk_seconds
        if window not in opened:
            opened[window] = open_like(bundle, located)
        try:
            check_same_model(bundle, opened[window], name)
        except DragomanError as error:
            found[bundle.directory] = str(error)
    if len(found) == len(bundles):
        raise DragomanError(problems=list(found.values()))
    return found
