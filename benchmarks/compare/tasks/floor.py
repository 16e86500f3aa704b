"""Measures a processor, and computes the floor: a lower bound for the time of a decoding step.

A step reads its data from memory once, and computes all its products and its share of the
encoder's. Time beyond the floor is due to small products, attention and other operators. Bandwidth
and products are measured with operators of ONNX Runtime at favourable sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dragoman.optimize.graph_values import MICROSOFT
from dragoman.optimize.running import InMemorySession

from ...models.shapes import Shape
from ...peers.interface import session_options
from ..contenders.text import Workload
from ..record import Row
from ..rounds import timed

REPETITIONS = 12
READ_MB = 256
"""Of a weight that is read to measure bandwidth: several times what caches hold."""
WIDTH = 2048
"""Rows and columns of the products whose speed is measured."""


@dataclass(frozen=True)
class Pace:
    """The speed of a machine with a number of threads."""

    threads: int
    gigabytes_per_second: float
    """Memory bandwidth of reading."""
    products: dict[str, float]
    """Billions of multiply-accumulates per second, by precision of weights."""


def best_pace(paces: Iterable[Pace]) -> Pace:
    """Return the best of several measurements, since other load only slows a machine down."""
    several = list(paces)
    products = {name: max(p.products[name] for p in several) for name in several[0].products}
    fastest = max(pace.gigabytes_per_second for pace in several)
    return Pace(several[0].threads, fastest, products)


def measure_pace(threads: int) -> Pace:
    """Measure the speed of this machine."""
    generator = np.random.default_rng(0)
    columns = READ_MB * 10**6 // 4 // WIDTH
    weight = generator.standard_normal((WIDTH, columns), np.float32)
    one = generator.standard_normal((1, WIDTH), np.float32)
    rows = generator.standard_normal((WIDTH, WIDTH), np.float32)
    integers = generator.integers(0, 256, (WIDTH, WIDTH)).astype(np.uint8)
    quantized = {
        "w": (integers.astype(np.int16) - 128).astype(np.int8),
        "x_scale": np.float32(0.01),
        "w_scale": np.full(WIDTH, 0.01, np.float32),
        "x_zero": np.uint8(128),
    }

    def seconds(x: NDArray[Any], operator: str, domain: str, **constants: Any) -> float:
        """Return the minimum seconds of several runs."""
        model = _product(operator, domain, x.dtype, constants)
        session = InMemorySession(model, session_options(threads))
        return min(timed(session.run, {"x": x})[1] for _ in range(REPETITIONS))

    read = seconds(one, "MatMul", "", w=weight)
    products = {
        "fp32": seconds(rows, "MatMul", "", w=weight[:, :WIDTH]),
        "int8": seconds(integers, "MatMulIntegerToFloat", MICROSOFT, **quantized),
    }
    return Pace(
        threads,
        round(weight.nbytes / read / 1e9, 1),
        {name: round(WIDTH**3 / 1e9 / needed, 1) for name, needed in products.items()},
    )


def _product(operator: str, domain: str, dtype: np.dtype[Any], constants: Any) -> ir.Model:
    """Return a model of one operator of x [R, WIDTH] and constants."""
    x = ir.val("x", ir.DataType.from_numpy(dtype), ["rows", WIDTH])
    weights = [ir.val(n, const_value=ir.tensor(value, name=n)) for n, value in constants.items()]
    y = ir.val("y", ir.DataType.FLOAT)
    node = ir.node(operator, [x, *weights], domain=domain, outputs=[y])
    given: dict[str, Any] = {"initializers": weights, "opset_imports": {"": 21, MICROSOFT: 1}}
    return ir.Model(ir.Graph([x], [y], nodes=[node], name=operator, **given), ir_version=10)


BYTES: dict[str, tuple[float, float]] = {"fp32": (4, 4), "int8": (1, 1), "int4": (0.5625, 1)}
"""Bytes of a weight, scales included, and of a number in a cache of self-attention."""
COMPUTED_IN = {"fp32": "fp32", "int8": "int8", "int4": "fp32"}
"""What a decoder multiplies in."""


def floors(
    paces: Sequence[Pace],
    precisions: Mapping[str, str],
    shape: Shape,
    workload: Workload,
    vocab_size: int,
) -> list[Row]:
    """Return the floor of Dragoman's contenders, given by precision, in each case.

    Returns:
        rows of the case; `ms`: time of a step, including its share of the encoder; `reading_ms` and
        `products_ms`: times of a step without the encoder, of which the longer one counts
    """
    source = (workload.source_length + (workload.longest_source or workload.source_length)) / 2
    cross, cached = shape.cached(source), shape.cached(workload.new_tokens / 2)  # mean over steps
    weights = shape.layer_weights + vocab_size * shape.d_model
    found: list[Row] = []
    for pace, contender, size in product(paces, precisions, workload.batch_sizes):
        rows, precision = size * workload.num_beams, precisions[contender]
        of_weight, of_cache = BYTES[precision]
        read = weights * of_weight + size * cross * 4 + rows * cached * of_cache
        reading = read / pace.gigabytes_per_second / 1e9
        products = rows * weights / pace.products[COMPUTED_IN[precision]] / 1e9
        products += rows * (cross + cached) / pace.products["fp32"] / 1e9
        encoder = "int8" if precision == "int4" else precision
        encoding = size * source * shape.layer_weights / pace.products[encoder] / 1e9
        seconds = max(reading, products) + encoding / workload.new_tokens
        times = {"ms": seconds, "reading_ms": reading, "products_ms": products}
        case = {"contender": contender, "threads": pace.threads, "batch_size": size}
        found.append(case | {name: round(1e3 * value, 3) for name, value in times.items()})
    return found
