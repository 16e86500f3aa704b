"""Building the bundle of engines from a bundle of graphs for a TensorRT target, and refitting it.

The decoder takes one token per step and caches of a fixed capacity. Refitting puts new weights of
the same architecture into engines that were built refittable, and needs a GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import write_graphs
from dragoman.onnx_graphs.optional_graphs import candidates_graph
from dragoman.progress import Progress, Silent
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.tensorrt.engines import usable_package
from dragoman.runtime.backends.tensorrt.packages import (
    Messages,
    Package,
    find_package,
    logger_of,
)
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import OPTIONAL_GRAPHS, GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import OnnxGraphs, Precision, Range, TensorRTEngines
from dragoman.runtime.format.writing import BundleWriter, ScratchWriter

from ..fusions.cleanup import Tidy
from ..graph_pass import Changes, GraphPass
from ..pipeline import apply_passes
from ..running import samples_for_graph
from ..targets import BuiltEngines
from .builder import EngineError, SerializedEngine, build_engine, losses
from .profiles import check_profiles
from .request import EngineOptions, check_capabilities, check_refittable
from .single_step import SINGLE_STEP


@dataclass(frozen=True)
class PinShapes(GraphPass):
    """Replaces dynamic axes by constants, and folds the shape computations that follow from them.

    TensorRT updates only static caches in place, and has an attention kernel for exactly one query.
    """

    spec: GraphSpec
    """The specification of the graph, which names the axes of its inputs and outputs."""
    sizes: Mapping[str, int]
    """The size of each axis to pin, by its name in the contract."""
    name: str = "pin-shapes"

    def apply(self, model: ir.Model) -> Changes:
        """Change the model in place; matches are tensors whose axes are now pinned."""
        pinned = pinned_spec(self.spec, self.sizes)
        values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
        for tensor in (*pinned.inputs, *pinned.outputs):
            values[tensor.name].shape = ir.Shape(tensor.shape)
        for _ in range(2):  # folded values have shapes, from which others follow
            for constant in model.graph.initializers.values():
                if constant.const_value is not None:
                    constant.shape = ir.Shape(constant.const_value.shape.numpy())
            for node in model.graph:
                for value in node.outputs:
                    if not value.is_graph_output():
                        value.shape = None  # inferred again later
            ShapeInferencePass()(model)
            Tidy().apply(model)
        before = (*self.spec.inputs, *self.spec.outputs)
        after = (*pinned.inputs, *pinned.outputs)
        return Changes(sum(a != b for a, b in zip(after, before, strict=True)))


def pinned_spec(spec: GraphSpec, sizes: Mapping[str, int]) -> GraphSpec:
    """Return the specification of a graph with sizes in place of the names of axes."""

    def pinned(tensor: TensorSpec) -> TensorSpec:
        shape = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in tensor.shape)
        return replace(tensor, shape=shape)

    return spec.map(pinned)


Stage = Callable[[str], None]


def build_engines(
    graphs: Bundle,
    directory: Path,
    options: EngineOptions,
    *,
    progress: Progress | None = None,
) -> BuiltEngines:
    """Write the bundle of engines into an existing directory.

    Args:
        graphs: the result of `optimize_bundle` for the target tensorrt-rtx or tensorrt
        progress: called from the thread that builds

    Raises:
        DragomanError: the options do not fit the package or the model, or no engine can be built.
    """
    progress = progress or Silent()
    manifest, package = graphs.manifest, find_package(graphs.manifest.target)
    if not isinstance(manifest.executable, OnnxGraphs):
        raise DragomanError(f"{graphs.directory}: expected graphs, found engines")
    check_profiles(options.profiles, options.capacity, manifest.model)
    check_capabilities(package, options.compute_capabilities, manifest.precision)
    options = _for_precision(options, manifest.precision)
    if package.name == "tensorrt":  # builds for the GPU of this machine, which is recorded
        options = replace(options, compute_capabilities=(find_gpu().compute_capability,))
    with tempfile.TemporaryDirectory(dir=directory, prefix=".pinned-") as temporary:
        pinned = pinned_bundle(graphs, Path(temporary), options.capacity, progress=progress.stage)
        engines = {
            name: build_engine(
                *(package, pinned.graph_path(name), spec, options),
                progress=_phases(progress, name),
            )
            for name, spec in pinned.manifest.graphs.items()
        }
        bundle = _write(pinned, engines, directory, package, options)
    warnings = [
        f"{name}: {w}"
        for name, e in engines.items()
        for w in (*e.warnings, *losses(e.report, len(options.profiles)))
    ]
    return BuiltEngines(bundle, tuple(dict.fromkeys(warnings)))


def _for_precision(options: EngineOptions, precision: Precision) -> EngineOptions:
    """Widen profiles of exactly one row where weights are quantized.

    With two rows TensorRT-RTX 1.7 reads int8 weights directly; for one it first expands them to
    fp16.
    """
    if precision not in ("int8", "int4"):
        return options
    one, two = Range(1, 1, 1), Range(1, 1, 2)
    profiles = [replace(p, batch=two) if p.batch == one else p for p in options.profiles]
    return replace(options, profiles=tuple(profiles))


def pinned_bundle(
    graphs: Bundle, directory: Path, capacity: int, *, progress: Stage = lambda stage: None
) -> Bundle:
    """Write the graphs that engines are built from, with one query and this capacity."""
    manifest = graphs.manifest
    models = {name: ir.load(graphs.graph_path(name)) for name in manifest.model_graphs}
    sizes = {"query": 1, "read": 1, "capacity": capacity}
    specs = {name: pinned_spec(spec, sizes) for name, spec in manifest.graphs.items()}
    if "candidates" in specs:
        suppressed = manifest.generation.suppressed_token_ids
        models["candidates"] = candidates_graph(specs["candidates"], suppressed)
    records = []
    if "decoder" in models:
        passes: list[GraphPass] = [PinShapes(manifest.graphs["decoder"], sizes)]
        if manifest.model.state_size is not None:
            passes += [SINGLE_STEP, Tidy()]
        records = apply_passes(
            models["decoder"],
            passes,
            graph="decoder",
            samples=samples_for_graph(specs["decoder"], manifest.model),
            progress=progress,
        )
    pinned = replace(
        manifest,
        graphs=specs,
        default_max_new_tokens=min(manifest.default_max_new_tokens, capacity),
        passes=(*manifest.passes, *records),
    )
    files = ScratchWriter(directory)
    write_graphs(models, specs, files)
    files.copy_tokenizers(graphs)
    return files.finish(pinned)


def _phases(progress: Progress, graph: str) -> Callable[[str, float], None]:
    last = ""

    def report(phase: str, share: float) -> None:
        nonlocal last
        if phase != last:
            last = phase
            progress.stage(f"engine of the {graph}: {phase}")
        progress.advance(round(100 * share), 100)

    return report


def _write(
    pinned: Bundle,
    engines: dict[str, SerializedEngine],
    directory: Path,
    package: Package,
    options: EngineOptions,
) -> Bundle:
    manifest = pinned.manifest
    files = BundleWriter(directory)
    for name, engine in engines.items():
        files.write(engine_file(name), engine.plan)
    files.copy_tokenizers(pinned)
    return files.finish(
        replace(
            manifest,
            graphs={
                name: replace(spec, file=engine_file(name))
                for name, spec in manifest.graphs.items()
            },
            tool_versions=manifest.tool_versions | {package.name: package.version},
            executable=TensorRTEngines(
                version=package.version,
                cuda_version=package.cuda_version,
                compute_capabilities=options.compute_capabilities,
                capacity=options.capacity,
                profiles=options.profiles,
                refittable=options.refittable,
                reports={name: engine.report for name, engine in engines.items()},
            ),
        )
    )


def engine_file(name: str) -> str:
    """Return the file of a graph's engine in a bundle."""
    return f"{name}.engine"


def refit_engines(
    engines: Bundle,
    graphs: Bundle,
    directory: Path,
    *,
    progress: Stage = lambda stage: None,
) -> Bundle:
    """Write the bundle of the engines, with the weights of the graphs, into an existing directory.

    Args:
        engines: refittable engines of the same architecture, target and precision
        graphs: the result of `optimize_bundle` for the new checkpoint

    Raises:
        DragomanError: the engines are others, cannot be loaded here, or have other weights.
    """
    built = _check_same(engines, graphs)
    package = usable_package(engines, built)
    files = BundleWriter(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".pinned-") as temporary:
        pinned = pinned_bundle(graphs, Path(temporary), built.capacity, progress=progress)
        for name in engines.manifest.graphs:
            file = engine_file(name)
            if name in OPTIONAL_GRAPHS:  # optional graphs have no weights
                files.write(file, engines.path(file).read_bytes())
                continue
            progress(f"new weights for the engine of the {name}")
            files.write(file, refit(package, engines.path(file), pinned.graph_path(name)))
        files.copy_tokenizers(pinned)
    return files.finish(
        replace(
            pinned.manifest,
            graphs=engines.manifest.graphs,
            executable=replace(built, parity=None),
            tool_versions=pinned.manifest.tool_versions | {package.name: package.version},
        )
    )


def _check_same(engines: Bundle, graphs: Bundle) -> TensorRTEngines:
    built = check_refittable(engines)
    old, new = engines.manifest, graphs.manifest
    for name in ("target", "precision", "architecture"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise DragomanError(
                f"{engines.directory}: new weights need the same {name}: expected {before}, found "
                f"{after}"
            )
    suppressed = [set(each.generation.suppressed_token_ids) for each in (old, new)]
    if "candidates" in old.graphs and suppressed[0] != suppressed[1]:
        raise DragomanError(
            f"{engines.directory}: new weights need the same suppressed tokens, which the engine "
            "of candidates leaves out: build the engines of this checkpoint without --refit"
        )
    return built


def refit(package: Package, engine: Path, graph: Path) -> bytes:
    """Return a serialized engine with the weights of a graph, which are matched by name."""
    trt = package.module
    with Messages() as messages:
        logger = logger_of(trt)
        runtime = trt.Runtime(logger)
        loaded = runtime.deserialize_cuda_engine(engine.read_bytes())
        if loaded is None:
            raise EngineError(f"{engine}: cannot be loaded: {messages.reason}")
        refitter = trt.Refitter(loaded, logger)
        parser = trt.OnnxParserRefitter(refitter, logger)
        if not parser.refit_from_file(str(graph)):
            reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
            raise EngineError(
                f"{engine}: its weights are not those of the new graph, rebuild it: "
                + ("; ".join(dict.fromkeys(reasons)) or messages.reason)
            )
        missing = refitter.get_missing_weights()
        if missing:
            raise EngineError(f"{engine}: the new graph lacks the weights {', '.join(missing)}")
        if not refitter.refit_cuda_engine():
            raise EngineError(f"{engine}: refitting failed: {messages.reason}")
        return bytes(loaded.serialize())
