"""New weights of the same architecture into engines that exist.

Much faster than a build, and the engines keep the kernels that were chosen for them. It needs a
GPU, and engines that were built to be refitted.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.runtime.backends.tensorrt.compatibility import usable_package
from dragoman.runtime.backends.tensorrt.messages import Messages, make_logger
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.bundle import Bundle, record_files, write_manifest
from dragoman.runtime.format.manifest import Manifest

from ..written import copy_tokenizers
from .engine_bundle import GRAPHS, engine_file, pinned_bundle
from .parser import EngineError


def refit_engines(
    engines: Bundle,
    graphs: Bundle,
    directory: Path,
    *,
    progress: Callable[[str], None] = lambda stage: None,
) -> Manifest:
    """Write the bundle of engines that have the graphs' weights, into an existing directory.

    Args:
        engines: of the same architecture, target and precision, built refittable
        graphs: what `optimize_bundle` makes of the new checkpoint

    Raises:
        DragomanError: the engines are of another architecture, target or precision, or were not
            built to be refitted.
        BackendError: the engines cannot be loaded here; says why.
        EngineError: an engine cannot be loaded here, or takes other weights than the graph has;
            names them.
    """
    _check(engines, graphs)
    built = engines.manifest.engines
    assert built is not None
    package, _ = usable_package(engines, built)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".pinned-") as temporary:
        pinned = pinned_bundle(graphs, Path(temporary), built.capacity, progress=progress)
        for name in GRAPHS:
            progress(f"new weights for the {name}'s engine")
            file = engine_file(name)
            graph = pinned.path(getattr(pinned.manifest, name).file)
            (directory / file).write_bytes(refit(package, engines.path(file), graph))
        copy_tokenizers(pinned, directory)
    written = dataclasses.replace(
        pinned.manifest,
        encoder=engines.manifest.encoder,
        decoder=engines.manifest.decoder,
        engines=built,
        tool_versions=pinned.manifest.tool_versions | {package.name: package.version},
        files=record_files(directory),
    )
    write_manifest(written, directory)
    return written


def check_built_for_it(engines: Bundle) -> None:
    """
    Raises:
        DragomanError: a bundle has no engines, or none that can be refitted.
    """
    old = engines.manifest
    if old.engines is None:
        raise DragomanError(f"{engines.directory}: expected engines to refit, found graphs")
    if not old.engines.refittable:
        raise DragomanError(
            f"{engines.directory}: its engines were not built to be refitted: build them with "
            "--refittable"
        )


def _check(engines: Bundle, graphs: Bundle) -> None:
    check_built_for_it(engines)
    old, new = engines.manifest, graphs.manifest
    for what, before, after in (
        ("target", old.target, new.target),
        ("precision", old.precision, new.precision),
        ("architecture", old.architecture, new.architecture),
    ):
        if before != after:
            raise DragomanError(
                f"{engines.directory}: new weights need the same {what}: expected {before}, found "
                f"{after}"
            )


def refit(package: Package, engine: Path, graph: Path) -> bytes:
    """A serialized engine with the weights of a graph, which are matched by name.

    Raises:
        EngineError: the engine cannot be loaded here, or its weights are not the graph's.
    """
    trt = package.module
    messages = Messages()
    logger = make_logger(trt, messages)
    runtime = trt.Runtime(logger)
    loaded = runtime.deserialize_cuda_engine(engine.read_bytes())
    if loaded is None:
        raise EngineError(f"{engine}: cannot be loaded: {messages.reason}")
    refitter = trt.Refitter(loaded, logger)
    parser = trt.OnnxParserRefitter(refitter, logger)
    if not parser.refit_from_file(str(graph)):
        reasons = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        raise EngineError(
            f"{engine}: its weights are not those of the new graph, build it anew: "
            + ("; ".join(dict.fromkeys(reasons)) or messages.reason)
        )
    missing = refitter.get_missing_weights()
    if missing:
        raise EngineError(f"{engine}: the new graph lacks the weights {', '.join(missing)}")
    if not refitter.refit_cuda_engine():
        raise EngineError(f"{engine}: refitting failed: {messages.reason}")
    return bytes(loaded.serialize())
