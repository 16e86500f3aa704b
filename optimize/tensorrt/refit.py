"""Refitting: putting new weights of the same architecture into existing engines.

This is much faster than a build, because the engines keep their kernels. It needs a GPU, and
engines that were built refittable.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from dragoman.errors import DragomanError
from dragoman.runtime.backends.tensorrt.engines import usable_package
from dragoman.runtime.backends.tensorrt.packages import Messages, Package, make_logger
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import OPTIONAL_GRAPHS
from dragoman.runtime.format.manifest import TensorRTEngines
from dragoman.runtime.format.writing import BundleWriter

from .builder import EngineError
from .engine_bundle import engine_file, pinned_bundle
from .request import check_refittable


def refit_engines(
    engines: Bundle,
    graphs: Bundle,
    directory: Path,
    *,
    progress: Callable[[str], None] = lambda stage: None,
) -> Bundle:
    """Write the bundle of the engines, with the weights of the graphs, into an existing directory.

    Args:
        engines: refittable engines of the same architecture, target and precision
        graphs: the result of `optimize_bundle` for the new checkpoint

    Raises:
        DragomanError: the engines are of another architecture, target or precision, or were not
            built refittable.
        BackendError: the engines cannot be loaded here; says why.
        EngineError: an engine cannot be loaded here, or its weights differ from the graph's; names
            them.
    """
    built = _check(engines, graphs)
    package = usable_package(engines, built)
    files = BundleWriter(directory)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".pinned-") as temporary:
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
        dataclasses.replace(
            pinned.manifest,
            graphs=engines.manifest.graphs,
            executable=built,
            tool_versions=pinned.manifest.tool_versions | {package.name: package.version},
        )
    )


def _check(engines: Bundle, graphs: Bundle) -> TensorRTEngines:
    built = check_refittable(engines)
    old, new = engines.manifest, graphs.manifest
    for name, before, after in (
        ("target", old.target, new.target),
        ("precision", old.precision, new.precision),
        ("architecture", old.architecture, new.architecture),
    ):
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
    """Return a serialized engine with the weights of a graph, which are matched by name.

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
            f"{engine}: its weights are not those of the new graph, rebuild it: "
            + ("; ".join(dict.fromkeys(reasons)) or messages.reason)
        )
    missing = refitter.get_missing_weights()
    if missing:
        raise EngineError(f"{engine}: the new graph lacks the weights {', '.join(missing)}")
    if not refitter.refit_cuda_engine():
        raise EngineError(f"{engine}: refitting failed: {messages.reason}")
    return bytes(loaded.serialize())
