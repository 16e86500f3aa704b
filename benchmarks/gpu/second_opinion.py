"""Runs engines in NVIDIA's Polygraphy, and compares them with ONNX Runtime on real inputs.

A difference found here is caused by the engine; a difference found only by `parity` is caused by
the runtime. Polygraphy's `TrtRunner` binds outputs that alias inputs to the same memory, as caches
updated in place require.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dragoman.optimize.step_inputs import Feed, StepInputs, record_steps
from dragoman.optimize.targets import find_target
from dragoman.runtime import Bundle, read_bundle
from dragoman.runtime.format.manifest import Precision, Range
from dragoman.verification.tolerances import TOLERANCES

from ..models.bundles import bundle_with_engines
from ..models.shipped import exported, held_out
from .parts import one_line

TARGET = "tensorrt-rtx"
SOURCES = 8


@click.command()
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(output: Path) -> None:
    """Write second_opinion.json after every bundle of engines."""
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # read when Polygraphy is imported
    rows: list[dict[str, Any]] = []
    sources = held_out(SOURCES)[1].sources
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        neutral = exported(workspace / "neutral")
        for precision in find_target(TARGET).precisions:
            try:
                engines = bundle_with_engines(
                    neutral,
                    workspace / precision,
                    target=TARGET,
                    precision=precision,
                    batches=(Range(1, SOURCES, 32),),
                    source=Range(1, 16, 64),
                    capacity=32,
                )
                rows += _compare_engines(read_bundle(neutral), read_bundle(engines), sources)
            except Exception as error:  # any error belongs in the record
                rows.append({"precision": precision, "error": one_line(error)})
            (output / "second_opinion.json").write_text(json.dumps(rows, indent=1) + "\n")


def _compare_engines(
    graphs: Bundle, engines: Bundle, sources: Sequence[Any]
) -> list[dict[str, Any]]:
    inputs = record_steps(graphs, engines, sources)
    return [
        row
        for graph, spec in engines.manifest.model_graphs.items()
        for row in compare(
            graph_runner(graphs.graph_path(graph)),
            engine_runner(engines.path(spec.file)),
            inputs,
            graph,
            engines.manifest.precision,
        )
    ]


def graph_runner(graph: Path) -> Any:
    """Return Polygraphy's runner of an ONNX graph in ONNX Runtime on the processor."""
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    session = SessionFromOnnx(str(graph), providers=["CPUExecutionProvider"])
    return OnnxrtRunner(session, name="ONNX Runtime")


def engine_runner(engine: Path) -> Any:
    """Return Polygraphy's runner of an engine with its first profile; needs a GPU."""
    from polygraphy.backend.common import BytesFromPath
    from polygraphy.backend.trt import EngineFromBytes, TrtRunner

    return TrtRunner(EngineFromBytes(BytesFromPath(str(engine))), name="TensorRT-RTX")


def compare(
    trusted: Any, checked: Any, inputs: StepInputs, graph: str, precision: Precision
) -> list[dict[str, Any]]:
    """Compare two of Polygraphy's runners on the same inputs.

    Returns:
        a row for each step and output: the largest absolute difference and, as in parity, the
        difference relative to max(1, the trusted output's largest value in any step); tokens,
        which may change where numbers do, must be the same in fp32 only
    """
    from polygraphy.comparator import Comparator, SimpleCompareFunc
    from polygraphy.logger import G_LOGGER

    steps: Sequence[int | None] = (None,)
    feeds: Sequence[Feed] = () if inputs.encoder is None else (inputs.encoder,)
    if graph == "decoder":
        steps, feeds = tuple(inputs.decoder), tuple(inputs.decoder.values())
    with G_LOGGER.verbosity(G_LOGGER.ERROR):
        results = Comparator.run([trusted, checked], data_loader=list(map(dict, feeds)))
        largest = _largest(results[0][1])
        allowed = {name: _allowed(precision, name, largest[name]) for name in largest}
        function = SimpleCompareFunc(atol=allowed, rtol=0.0, check_error_stat="max")
        (accuracy,) = Comparator.compare_accuracy(results, compare_func=function)
        (iterations,) = accuracy.values()
    return [
        {
            "precision": precision,
            "graph": graph,
            "step": step,
            "output": name,
            "largest absolute": _finite(found.max_absdiff),
            "difference": _finite(found.max_absdiff / max(1.0, largest[name])),
            "passed": bool(found),
        }
        for step, iteration in zip(steps, iterations, strict=True)
        for name, found in iteration.items()
    ]


def _largest(iterations: Sequence[Any]) -> dict[str, float]:
    """Find the largest absolute value of each output in any step."""
    names = list(iterations[0])
    return {n: max(float(abs(i[n].astype(float)).max()) for i in iterations) for n in names}


def _allowed(precision: Precision, output: str, largest: float) -> float:
    if output == "next_token":
        return 0.0 if precision == "fp32" else math.inf
    return TOLERANCES[precision] * max(1.0, largest)


def _finite(number: float) -> float | str:
    """Return a number, or text for infinity and NaN, which JSON lacks."""
    return float(f"{number:.3g}") if math.isfinite(number) else str(number)


if __name__ == "__main__":
    main()
