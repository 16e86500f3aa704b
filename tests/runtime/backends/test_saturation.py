"""Whether products of 8-bit integers saturate: the probe is what its name says, and its answer
decides which kernels are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dragoman.runtime.backends.onnxruntime.cpu import saturation
from dragoman.runtime.backends.onnxruntime.cpu.backend import session_options

ENTRY = "session.x64quantprecision"


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    saturation.saturates.cache_clear()
    yield
    saturation.saturates.cache_clear()


def test_the_probe_multiplies_the_largest_integers() -> None:
    model = onnx.load_from_string(saturation.PROBE)
    onnx.checker.check_model(model, full_check=True)
    (node,) = model.graph.node
    assert (node.op_type, list(node.input)) == ("MatMulInteger", ["x", "w"])
    (weight,) = model.graph.initializer
    assert np.array_equal(numpy_helper.to_array(weight), np.full((4, 1), 127, np.int8))


@pytest.mark.parametrize(("sum_of_products", "expected"), [(4 * 255 * 127, None), (65534, "1")])
def test_exact_kernels_are_asked_for_where_sums_saturate(
    sum_of_products: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        def __init__(self, *_: object, **__: object) -> None: ...

        def run(self, *_: object) -> Any:
            return [np.array([[sum_of_products]], np.int32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    options = session_options(1)
    if expected is None:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry(ENTRY)
    else:
        assert options.get_session_config_entry(ENTRY) == expected


def test_this_processor_answers() -> None:
    assert saturation.saturates() in (False, True)
