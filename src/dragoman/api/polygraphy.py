"""Writes inputs and commands for Polygraphy, to check a bundle with another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, refuse_unwritable
from dragoman.runtime.format.bundle import Bundle, read_bundle

from .preflight import check_inputs

if TYPE_CHECKING:
    from dragoman.optimize.step_inputs import PolygraphyFiles


def write_polygraphy(
    bundle: str | Path,
    directory: str | Path,
    *,
    graphs: str | Path | None = None,
    inputs: str | Path | None = None,
) -> PolygraphyFiles:
    """Write inputs of the graphs as files for Polygraphy, with the commands to run.

    Decoder inputs are those of the first two, a middle and the last step of decoding. Numbers are
    stored as text, which takes a third more space.

    Args:
        directory: new directory, written atomically
        graphs: bundle with ONNX graphs of the same model, to compare with; required for engines
        inputs: file of texts, one per line, or directory of audio clips; None: random inputs

    Returns:
        the rows of every input, the numbers of the written decoder steps, and the files' size

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
