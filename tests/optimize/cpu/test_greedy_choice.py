"""The greedy choice by blocks of any vocabulary: the tokens of ArgMax, the first of equal ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman.optimize.cpu.logits import GREEDY_CHOICE
from dragoman.optimize.pipeline import apply_passes
from dragoman.optimize.running import run

PADDED = {
    2048: False,
    2053: True,  # a prime
    2100: False,
    2103: True,  # 3 * 701
    9618: False,  # 6 * 1603: blocks of a sixth, as for the 256,206 tokens of NLLB
    51866: True,  # 2 * 25933, of Whisper large-v3
}
"""Vocabularies, and whether values are added to them."""


def choice(vocabulary: int) -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 24]> '
        f"g (float[b,q,{vocabulary}] logits) => (int64[b] token, float[b] score) "
        "<int64 last = {-1}, int64[1] axis = {-1}> {"
        " chosen = Gather<axis=1>(logits, last)"
        " token = ArgMax<axis=-1, keepdims=0>(chosen)"
        " probabilities = LogSoftmax<axis=-1>(chosen)"
        " score = ReduceMax<keepdims=0>(probabilities, axis) }"
    )


def logits(rows: int, queries: int, vocabulary: int, kind: str) -> NDArray[np.float32]:
    generator = np.random.default_rng(vocabulary)
    values = generator.standard_normal((rows, queries, vocabulary)).astype(np.float32)
    if kind == "equal":
        values = np.round(values)
    elif kind == "last":
        values[..., -1] = 9
    elif kind == "suppressed":
        values[..., : vocabulary // 2] = -np.inf
    return values


@pytest.mark.parametrize("vocabulary", PADDED)
@pytest.mark.parametrize("rows, queries", [(1, 1), (7, 3)])
def test_choices_are_those_of_argmax(vocabulary: int, rows: int, queries: int) -> None:
    model = choice(vocabulary)
    samples: dict[str, Any] = {"logits": logits(rows, queries, vocabulary, "random")}
    (record,) = apply_passes(model, [GREEDY_CHOICE], graph="decoder", samples=samples)
    assert (record.matches, record.refusals) == (1, ())
    found = Counter(node.op_type for node in model.graph)
    assert (found["ArgMax"], found["Pad"]) == (2, int(PADDED[vocabulary]))
    for kind in ("random", "equal", "last", "suppressed"):
        values = logits(rows, queries, vocabulary, kind)
        outputs = run(model, {"logits": values})
        last = torch.from_numpy(values[:, -1])
        expected = last.double().log_softmax(-1)
        first = (last == last.amax(-1, keepdim=True)).int().argmax(-1)
        assert outputs["token"].tolist() == first.tolist(), kind
        scores = expected.gather(1, first[:, None])[:, 0]
        np.testing.assert_allclose(np.asarray(outputs["score"], np.float32), scores, atol=1e-5)


def test_a_small_vocabulary_is_left_alone() -> None:
    model = choice(2047)
    samples: dict[str, Any] = {"logits": logits(2, 2, 2047, "random")}
    (record,) = apply_passes(model, [GREEDY_CHOICE], graph="decoder", samples=samples)
    assert record.matches == 0
    assert [refusal.reason for refusal in record.refusals] == ["the vocabulary of 2047 is small"]
