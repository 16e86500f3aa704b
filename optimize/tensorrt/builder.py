"""Building a serialized engine from an ONNX graph: parsing, timing cache, progress, report."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman.errors import DragomanError
from dragoman.onnx_graphs.graph_files import module_of
from dragoman.runtime.backends.tensorrt.packages import (
    NO_DRIVER,
    Messages,
    Package,
    cache_file,
    logger_of,
    read_cache,
    write_cache,
)
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.manifest import EngineReport

from .profiles import add_profiles
from .request import EngineOptions, set_capabilities


class EngineError(DragomanError):
    """TensorRT cannot build an engine from a graph, or would build a wrong one."""


Progress = Callable[[str, float], None]
"""Called with a phase of the build and its completed share."""

DROPPED = "Unused Input:"
NEEDS_GPU = "refittable engines can only be built on a machine with a GPU; "


@dataclass(frozen=True)
class SerializedEngine:
    """A serialized engine."""

    plan: bytes
    report: EngineReport
    warnings: tuple[str, ...]


def build_engine(
    package: Package,
    graph: Path,
    spec: GraphSpec,
    options: EngineOptions,
    *,
    progress: Progress = lambda phase, share: None,
) -> SerializedEngine:
    """Build an engine.

    Args:
        graph: an ONNX file with standard operators only
        spec: the graph's specification; the dynamic axes are batch, source_batch and source

    Raises:
        EngineError: an operator is not supported, or the build or what it would compute is wrong.
        DragomanError: TensorRT refuses a profile.
        KeyboardInterrupt: the user interrupted the build, which has ended.
    """
    trt = package.module
    with Messages() as messages:
        builder = trt.Builder(logger_of(trt))
        network = parse(trt, builder, graph)
        config = builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # makes engines inspectable
        config.clear_flag(trt.BuilderFlag.TF32)  # fp32 means fp32
        if options.refittable:
            config.set_flag(trt.BuilderFlag.REFIT)
        _allow_decomposition(trt, network)
        set_capabilities(package, config, options.compute_capabilities)
        add_profiles(builder, config, spec, options.profiles)
        cache = timing_cache_file(package)
        warnings = [] if cache is None else [load_timing_cache(config, cache)]
        plan = _build(trt, builder, network, config, progress)
        if plan is None:
            hint = NEEDS_GPU if options.refittable else ""
            raise EngineError(
                f"{graph.name}: {package.name} {package.version}: {hint}{messages.reason}"
            )
        # The parser ignores inputs that it does not know, such as the seventh of Attention, and
        # only warns that nothing reads them.
        dropped = [m.partition(DROPPED)[2].strip() for m in messages.warnings if DROPPED in m]
        if dropped:
            raise EngineError(
                f"{graph.name}: the engine would ignore the input {', '.join(dropped)} and compute "
                "wrong results"
            )
        if cache is not None:
            warnings.append(save_timing_cache(config, cache))
    serialized = bytes(plan)
    return SerializedEngine(
        serialized,
        report(package, network, graph, serialized),
        tuple(w for w in warnings if w is not None),
    )


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let TensorRT decompose attention without a fused kernel, as in fp32 with several queries."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            # The bindings return an ILayer and do not downcast it further.
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True


def _build(trt: Any, builder: Any, network: Any, config: Any, progress: Progress) -> Any:
    """Build in another thread: native code ignores Ctrl-C, this thread does not."""
    cancelled = threading.Event()
    config.progress_monitor = make_monitor(trt, progress, cancelled)
    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            return executor.submit(builder.build_serialized_network, network, config).result()
        except BaseException:
            cancelled.set()
            raise


def make_monitor(trt: Any, progress: Progress, cancelled: threading.Event) -> Any:
    """Make a progress monitor of the package `trt`, which ends the build once `cancelled`."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self._steps[phase] = max(1, steps)
            progress(phase, 0.0)

        def phase_finish(self, phase: str) -> None:
            progress(phase, 1.0)

        def step_complete(self, phase: str, step: int) -> bool:
            progress(phase, min(1.0, (step + 1) / self._steps.get(phase, 1)))
            return not cancelled.is_set()

    return Monitor()


def parse(trt: Any, builder: Any, graph: Path) -> Any:
    """Parse an ONNX file into a strongly typed TensorRT network (INetworkDefinition).

    Raises:
        EngineError: an operator is not supported; names it, its node and its module of the model.
    """
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger_of(trt))
    with Messages() as messages:
        parsed = parser.parse_from_file(str(graph))
    if not parsed:
        errors = list(map(parser.get_error, range(parser.num_errors)))
        reasons = [_reason(error, graph) for error in errors] or [messages.reason]
        raise EngineError(f"{graph.name}: " + "; ".join(dict.fromkeys(reasons)))
    return network


def _reason(error: Any, graph: Path) -> str:
    operator, name = error.node_operator(), error.node_name()
    lines = [line for line in str(error.desc()).splitlines() if NO_DRIVER not in line]
    reason = " ".join(" ".join(lines).split())
    if not operator:
        return reason
    nodes = {node.name: node for node in ir.load(graph).graph.all_nodes()}
    module = module_of(nodes[name]) if name in nodes else "the graph"
    return f"{operator} of {module} (node {name}) cannot become part of an engine: {reason}"


def timing_cache_file(package: Package) -> Path | None:
    """Return the path of the timing cache; None: the package does not time kernels.

    TensorRT-RTX compiles kernels where they run, with a cache of its own.
    """
    return None if package.name == "tensorrt-rtx" else cache_file(package, "timing")


def load_timing_cache(config: Any, file: Path) -> str | None:
    """Let a build (IBuilderConfig) use and extend the cache.

    Returns:
        a warning if the file cannot be used
    """
    known = read_cache(file)
    cache = config.create_timing_cache(known)
    if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
        return None
    fresh = config.create_timing_cache(b"")
    if fresh is not None:
        config.set_timing_cache(fresh, ignore_mismatch=False)
    return (
        f"{file} is of another version or device, or damaged: starting with an empty cache"
        if known
        else None
    )


def save_timing_cache(config: Any, file: Path) -> str | None:
    """Write a build's timings to the file; return a warning if it cannot be written."""
    cache = config.get_timing_cache()
    if cache is None:
        return None
    warning = write_cache(file, bytes(cache.serialize()))
    return None if warning is None else f"timing cache {warning}"


# Patterns in the readable part of a TensorRT-RTX engine. Its format is undocumented, so that what
# they find is for diagnostics only.
FUSED = re.compile(rb"function=\{ name=\"?(_\w*mha\w*)")
"""Kernels of fused attention."""

DEQUANTIZATION = re.compile(rb"function=\{ name=\"?__myl_(?:Repl)?CastMulCast[\",} ]")
"""Kernels that only expand a weight to 16 bits, for another kernel to multiply.

They cause more memory traffic than a 16-bit weight."""


def report(package: Package, network: Any, graph: Path, plan: bytes) -> EngineReport:
    """Describe the contents of an engine, as far as they can be known without a GPU."""
    trt = package.module
    layers = list(map(network.get_layer, range(network.num_layers)))
    kinds = Counter(str(layer.type).rpartition(".")[2].lower() for layer in layers)
    readable = package.name == "tensorrt-rtx"
    fused = Counter(name.decode() for name in FUSED.findall(plan))
    return EngineReport(
        layers=dict(sorted(kinds.items())),
        weights=_weights(graph),
        attentions=sum(layer.type == trt.LayerType.ATTENTION_INPUT for layer in layers),
        fused=dict(sorted(fused.items())) if readable else None,
        dequantizations=len(DEQUANTIZATION.findall(plan)) if readable else None,
    )


def losses(report: EngineReport, profiles: int) -> list[str]:
    """Return warnings about fused kernels that an engine with this many profiles lacks."""
    warnings = []
    if report.fused is not None:
        fused, expected = sum(report.fused.values()), report.attentions * profiles
        if fused < expected:
            warnings.append(
                f"{expected - fused} of {expected} attentions have no fused kernel (fp32 has none "
                "for several queries; 16 bits have them for heads whose size is a multiple of 8)"
            )
    if report.dequantizations:
        warnings.append(
            f"{report.dequantizations} weights are dequantized by a separate kernel in every "
            "run, which takes longer than reading them in fp16"
        )
    return warnings


def _weights(graph: Path) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for value in ir.load(graph).graph.initializers.values():
        if value.const_value is not None:
            sizes[value.const_value.dtype.numpy().name] += value.const_value.nbytes
    return dict(sorted(sizes.items()))
