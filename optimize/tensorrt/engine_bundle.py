"""A bundle of graphs for a TensorRT target -> the bundle of its engines."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from dragoman.errors import DragomanError
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.tensorrt.packages import Package, find_package
from dragoman.runtime.format.bundle import Bundle, record_files, write_manifest
from dragoman.runtime.format.executables import Engines, Range
from dragoman.runtime.format.manifest import GraphSpec, Manifest, Precision

from ..pipeline import apply_passes
from ..samples import samples_for_graph
from ..written import copy_tokenizers, write_graphs
from .builder import Engine, EngineOptions, build_engine
from .capabilities import check_capabilities
from .profiles import check_profiles
from .report import losses
from .shapes import PinShapes, pinned_spec

Stage = Callable[[str], None]
GRAPHS = ("encoder", "decoder")


class Built(NamedTuple):
    """
    Attributes:
        warnings: that whoever builds should know of, a line each
    """

    manifest: Manifest
    warnings: tuple[str, ...]


def build_engines(
    graphs: Bundle,
    directory: Path,
    options: EngineOptions,
    *,
    progress: Stage = lambda stage: None,
) -> Built:
    """Write the bundle of engines, into an existing directory.

    Args:
        graphs: what `optimize_bundle` makes for the target tensorrt-rtx or tensorrt
        progress: called with what is going on

    Raises:
        BackendError: the target's package is missing or too old.
        DragomanError: the options do not fit the package or the model.
        EngineError: TensorRT cannot make an engine of a graph; says where and why.
    """
    package = find_package(graphs.manifest.target)
    _check(package, graphs, options)
    options = _for_precision(options, graphs.manifest.precision)
    if package.name == "tensorrt":  # builds for the GPU that it runs on, and that is for the record
        options = dataclasses.replace(
            options, compute_capabilities=(find_gpu().compute_capability,)
        )
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".pinned-") as temporary:
        pinned = pinned_bundle(graphs, Path(temporary), options.capacity, progress=progress)
        engines = {name: _engine(package, pinned, name, options, progress) for name in GRAPHS}
        manifest = _write(pinned, engines, directory, package, options)
    warnings = [
        f"{name}: {w}"
        for name, e in engines.items()
        for w in (*e.warnings, *losses(e.report, len(options.profiles)))
    ]
    return Built(manifest, tuple(dict.fromkeys(warnings)))


def _check(package: Package, graphs: Bundle, options: EngineOptions) -> None:
    manifest = graphs.manifest
    if manifest.engines is not None:
        raise DragomanError(f"{graphs.directory}: expected graphs, found engines")
    check_profiles(options.profiles, options.capacity, manifest.model)
    check_capabilities(package, options.compute_capabilities, manifest.precision)


def _for_precision(options: EngineOptions, precision: Precision) -> EngineOptions:
    """Products of TensorRT-RTX 1.7 read int8 where there may be two rows; for one row alone, a
    kernel before them writes the weights out in fp16."""
    if precision not in ("int8", "int4"):
        return options
    one, two = Range(1, 1, 1), Range(1, 1, 2)
    profiles = [
        dataclasses.replace(p, batch=two) if p.batch == one else p for p in options.profiles
    ]
    return dataclasses.replace(options, profiles=tuple(profiles))


def pinned_bundle(
    graphs: Bundle, directory: Path, capacity: int, *, progress: Stage = lambda stage: None
) -> Bundle:
    """The graphs as engines are built of them, in an existing directory: one query, this capacity.

    Raises:
        PassError: pinning changed what the decoder computes.
    """
    manifest = graphs.manifest
    models = {name: ir.load(graphs.path(_spec(manifest, name).file)) for name in GRAPHS}
    sizes = {"query": 1, "capacity": capacity}
    decoder = pinned_spec(manifest.decoder, sizes)
    records = apply_passes(
        models["decoder"],
        (PinShapes(manifest.decoder, sizes),),
        graph="decoder",
        samples=samples_for_graph(decoder, manifest.model),
        progress=progress,
    )
    pinned = dataclasses.replace(
        manifest,
        decoder=decoder,
        default_max_new_tokens=min(manifest.default_max_new_tokens, capacity),
        passes=(*manifest.passes, *records),
    )
    return Bundle(directory, write_graphs(pinned, models, graphs, directory))


def _engine(
    package: Package, pinned: Bundle, name: str, options: EngineOptions, progress: Stage
) -> Engine:
    spec = _spec(pinned.manifest, name)
    return build_engine(
        package,
        pinned.path(spec.file),
        spec,
        options,
        progress=lambda phase, share: progress(f"{name}'s engine: {phase} {share:.0%}"),
    )


def _write(
    pinned: Bundle,
    engines: dict[str, Engine],
    directory: Path,
    package: Package,
    options: EngineOptions,
) -> Manifest:
    manifest = pinned.manifest
    for name, engine in engines.items():
        (directory / engine_file(name)).write_bytes(engine.plan)
    copy_tokenizers(pinned, directory)
    written = dataclasses.replace(
        manifest,
        encoder=dataclasses.replace(manifest.encoder, file=engine_file("encoder")),
        decoder=dataclasses.replace(manifest.decoder, file=engine_file("decoder")),
        tool_versions=manifest.tool_versions | {package.name: package.version},
        engines=Engines(
            version=package.version,
            cuda_version=package.cuda_version,
            compute_capabilities=options.compute_capabilities,
            capacity=options.capacity,
            profiles=options.profiles,
            refittable=options.refittable,
            encoder=engines["encoder"].report,
            decoder=engines["decoder"].report,
        ),
        files=record_files(directory),
    )
    write_manifest(written, directory)
    return written


def engine_file(name: str) -> str:
    """Where the engine of a graph lies in a bundle."""
    return f"{name}.engine"


def _spec(manifest: Manifest, name: str) -> GraphSpec:
    return manifest.encoder if name == "encoder" else manifest.decoder
