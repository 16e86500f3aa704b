"""What a processor can do: the memory that it reads and the products that it computes in a second,
by the operators of ONNX Runtime at sizes that suit them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from dragoman.optimize.graph_values import MICROSOFT, new_weight
from dragoman.optimize.in_memory import InMemorySession

REPETITIONS = 12
READ_MB = 256
"""Of a weight that is read to measure bandwidth: several times what caches hold."""
WIDTH = 2048
"""Rows and columns of the products whose speed is measured."""


@dataclass(frozen=True)
class Pace:
    """What a machine can do, with a number of threads.

    Attributes:
        gigabytes_per_second: read from memory
        products: billions of multiplications and additions a second, by the precision of weights
    """

    threads: int
    gigabytes_per_second: float
    products: dict[str, float]


def best_pace(paces: Iterable[Pace]) -> Pace:
    """The best of several moments, with as many threads: what else a machine does only slows it."""
    first, *others = paces
    return Pace(
        first.threads,
        max(pace.gigabytes_per_second for pace in (first, *others)),
        {
            precision: max(pace.products[precision] for pace in (first, *others))
            for precision in first.products
        },
    )


def measure_pace(threads: int) -> Pace:
    """Of this machine, now."""
    generator = np.random.default_rng(0)
    columns = READ_MB * 10**6 // 4 // WIDTH
    weight = generator.standard_normal((WIDTH, columns), np.float32)
    one = generator.standard_normal((1, WIDTH), np.float32)
    seconds = _seconds(_matmul(weight), {"x": one}, threads)
    square, rows = weight[:, :WIDTH], generator.standard_normal((WIDTH, WIDTH), np.float32)
    billions = WIDTH**3 / 1e9
    fp32 = billions / _seconds(_matmul(square), {"x": rows}, threads)
    integers = generator.integers(0, 256, (WIDTH, WIDTH)).astype(np.uint8)
    int8 = billions / _seconds(_integer_matmul(integers), {"x": integers}, threads)
    return Pace(
        threads,
        round(weight.nbytes / seconds / 1e9, 1),
        {"fp32": round(fp32, 1), "int8": round(int8, 1)},
    )


def _matmul(weight: NDArray[np.float32]) -> ir.Model:
    """X [R, WIDTH] @ weight"""
    return _product("MatMul", "", ir.DataType.FLOAT, {"w": weight})


def _integer_matmul(weight: NDArray[np.uint8]) -> ir.Model:
    """The same of integers, as `com.microsoft.MatMulIntegerToFloat`."""
    constants = {
        "w": (weight.astype(np.int16) - 128).astype(np.int8),
        "x_scale": np.float32(0.01),
        "w_scale": np.full(WIDTH, 0.01, np.float32),
        "x_zero": np.uint8(128),
    }
    return _product("MatMulIntegerToFloat", MICROSOFT, ir.DataType.UINT8, constants)


def _product(operator: str, domain: str, dtype: ir.DataType, constants: dict[str, Any]) -> ir.Model:
    x = ir.Value(name="x", shape=ir.Shape(["rows", WIDTH]), type=ir.TensorType(dtype))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21, MICROSOFT: 1}, name=operator)
    weights = [new_weight(graph, name, np.asarray(numbers)) for name, numbers in constants.items()]
    node = ir.node(operator, [x, *weights], domain=domain)
    (result,) = node.outputs
    result.name, result.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    graph.outputs.append(result)
    return ir.Model(graph, ir_version=10)


def _seconds(model: ir.Model, feeds: dict[str, NDArray[Any]], threads: int) -> float:
    """The shortest of some runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = InMemorySession(model, options)
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        session.run(feeds)
        times.append(time.perf_counter() - started)
    return min(times)
