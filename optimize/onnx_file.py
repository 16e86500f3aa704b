"""Optimizing any ONNX Transformer: fusing it to standard operators, then to those of a target."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from dragoman.errors import DragomanError, refuse_existing
from dragoman.files.regular_files import check_regular
from dragoman.runtime.format.manifest import PassRecord

from .checking.interface import read_interface
from .checking.samples import sample_sets
from .fusions import EXPAND_MASKS, OPSET_PASS, STANDARD_PASSES
from .graph_values import infer_shapes
from .pipeline import apply_passes, quiet_libraries
from .running import Samples
from .targets import find_target


def optimize_file(
    source: Path,
    destination: Path,
    *,
    target: str = "neutral",
    samples: Samples | Sequence[Samples] | None = None,
    compare: bool = True,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[PassRecord]:
    """Optimize an ONNX file. The destination is written completely or not at all.

    Args:
        target: "neutral" fuses to standard operators; "cpu" then fuses to ONNX Runtime's own
        samples: one or several sets of inputs; None: random ones that execute every branch if found
        compare: whether to compare the outputs before and after each pass; the interface is always

    Raises:
        PassError: a pass failed or changed an output by more than its tolerance.
    """
    refuse_existing(destination, overwrite)
    own_passes = find_target(target).recipe.file_passes
    if own_passes is None:
        raise DragomanError(f"{source}: target {target} needs a bundle, whose inputs are known")
    check_regular(source, onnx.checker.MAXIMUM_PROTOBUF)
    try:
        model = ir.load(source)
        for graph in model.graphs():
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    check_regular(Path(value.const_value.path))
        ir.external_data.load_to_model(model)
        TopologicalSortPass()(model)  # converters to float16 append nodes
    except Exception as error:  # protobuf's and onnx_ir's errors share no base
        raise DragomanError(f"{source}: expected an ONNX file: {error}") from error
    if len(list(model.graph)) == 0:
        raise DragomanError(f"{source}: expected an ONNX file, found no nodes in it")
    interface = read_interface(model)
    with quiet_libraries():
        infer_shapes(model)
        if samples is None and compare:
            samples = sample_sets(model, (OPSET_PASS, EXPAND_MASKS))
        records = apply_passes(
            model,
            (*STANDARD_PASSES, *own_passes),
            graph=source.name,
            samples=samples if compare else None,
            interface=interface,
            progress=progress,
        )
    _save(model, destination)
    return records


def _save(model: ir.Model, destination: Path) -> None:
    weights = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    large = weights > onnx.checker.MAXIMUM_PROTOBUF - 2**20
    data_file = f"{destination.name}.data"
    try:
        with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".partial-") as directory:
            partial = Path(directory)
            ir.save(model, partial / destination.name, external_data=data_file if large else None)
            if large:
                (partial / data_file).replace(destination.parent / data_file)
            (partial / destination.name).replace(destination)
    except OSError as error:
        raise DragomanError(f"cannot write {destination}: {error.strerror}") from error
