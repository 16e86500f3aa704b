"""One ONNX graph -> one serialized engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.runtime.backends.tensorrt.messages import Messages, make_logger
from dragoman.runtime.backends.tensorrt.packages import Package
from dragoman.runtime.format.contract import GraphSpec
from dragoman.runtime.format.executables import EngineReport

from ..engine_options import EngineOptions
from .capabilities import set_capabilities
from .parser import EngineError, parse
from .profiles import add_profiles
from .progress import Progress, make_monitor
from .report import report
from .timing_cache import load_timing_cache, save_timing_cache, timing_cache_file

DROPPED = "Unused Input:"
NEEDS_GPU = "refittable engines can only be built on a machine with a GPU; "


@dataclass(frozen=True)
class SerializedEngine:
    """A serialized engine.

    Attributes:
        plan: its bytes
        warnings: for the user, a line each
    """

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
        spec: its specification in the contract; the dynamic axes are batch, source_batch and source

    Raises:
        EngineError: an operator is not supported, the build fails, or the engine would compute
            wrong results; says where and why.
        DragomanError: TensorRT refuses a profile; names the tensor and the range.
        KeyboardInterrupt: the user interrupted the build, which has ended.
    """
    trt = package.module
    messages = Messages()
    logger = make_logger(trt, messages)
    builder = trt.Builder(logger)
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
    _refuse_dropped_inputs(messages, graph)
    if cache is not None:
        warnings.append(save_timing_cache(config, cache))
    serialized = bytes(plan)
    return SerializedEngine(
        serialized,
        report(package, network, graph, serialized),
        tuple(w for w in warnings if w is not None),
    )


def _refuse_dropped_inputs(messages: Messages, graph: Path) -> None:
    """The parser ignores operator inputs that it does not know, such as the seventh of Attention,
    and only warns that nothing reads them.
    """
    dropped = [m.partition(DROPPED)[2].strip() for m in messages.warnings if DROPPED in m]
    if dropped:
        raise EngineError(
            f"{graph.name}: the engine would ignore the input {', '.join(dropped)} and compute "
            "wrong results"
        )


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let TensorRT decompose attention that has no fused kernel, as in fp32 with several queries.
    Fused kernels are still used where they exist.
    """
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
        except KeyboardInterrupt:
            cancelled.set()
            raise
