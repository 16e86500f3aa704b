"""Whether this processor's products of 8-bit integers are exact.

Those of x86 processors without VNNI add two of them in 16 bits, which saturate. ONNX Runtime knows
exact kernels, too, but takes them only if it is asked to, and then on every x86 processor, where
they take about twice the time. So it is asked where products are found not to be exact.
"""

from __future__ import annotations

import functools

import numpy as np
import onnxruntime

PROBE = (
    b'\x08\x07:a\n\x18\n\x01x\n\x01w\x12\x01y"\rMatMulInteger\x12\nsaturation*\x0f\x08\x04\x08\x01'
    b"\x10\x03B\x01wJ\x04\x7f\x7f\x7f\x7fZ\x13\n\x01x\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n"
    b"\x02\x08\x04b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00"
    b"\x10\r"
)
"""A graph: y = MatMulInteger(x, w) (opset 13), x uint8 [1, 4], w int8 [4, 1] of the largest
integers."""


@functools.cache
def saturates() -> bool:
    """Ask the kernels: a product of the largest integers (half a millisecond)."""
    session = onnxruntime.InferenceSession(PROBE, providers=["CPUExecutionProvider"])
    (found,) = session.run(["y"], {"x": np.full((1, 4), 255, np.uint8)})
    return int(np.asarray(found).item()) != 4 * 255 * 127
