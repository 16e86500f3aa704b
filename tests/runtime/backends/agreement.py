"""What the backends of a GPU must share with the processor's, on doubles of their libraries."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.runtime import Model, Result

from ...device_double import DoubleDevice

ALLOCATING = {"allocate", "free", "allocate_host", "new_stream", "new_event", "begin_capture"}
"""What must not occur once the sizes of a batch are known."""


def same(found: list[Result], expected: list[Result]) -> None:
    assert [r.tokens for r in found] == [r.tokens for r in expected]
    assert [r.finish_reason for r in found] == [r.finish_reason for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4, abs=1e-4)


def same_numbers(
    model: Model,
    ids_model: Model,
    source: NDArray[np.int64],
    mask: NDArray[np.bool_],
    target: NDArray[np.int64],
) -> None:
    """What `encode` and `score` return, for sources [batch, source] and targets [batch, query]."""
    found, expected = model.backend.encode(source, mask), ids_model.backend.encode(source, mask)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        used = np.broadcast_to(mask[:, None, :, None], values.shape)
        np.testing.assert_allclose(found[name][used], values[used], atol=1e-5)
    np.testing.assert_allclose(
        model.backend.score(source, mask, target),
        ids_model.backend.score(source, mask, target),
        atol=1e-4,
    )


def repeats_without_allocating(
    model: Model, device: DoubleDevice, sources: list[list[int]], capacity: int
) -> None:
    """The second time, the device only runs: the encoder once, and captured steps."""
    model.generate(sources, max_new_tokens=capacity)
    device.log.clear()
    again = model.generate(sources, max_new_tokens=capacity)
    assert ALLOCATING.isdisjoint(device.log)
    assert device.log.count("execute") == 1  # the encoder; steps are launched
    assert device.log.count("launch") >= max(len(r.tokens) for r in again)
