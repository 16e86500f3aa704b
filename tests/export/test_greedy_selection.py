"""Greedy selection by blocks: the tokens of ArgMax over any vocabulary, the first of equal ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from dragoman.export.graphs import OPSET, GreedySelection, blocks_of

BLOCKS = {
    2: (2, 0),
    2047: (2047, 0),  # small
    2048: (64, 0),
    2053: (45, 17),  # a prime
    2100: (50, 0),
    2103: (45, 12),  # 3 * 701
    9618: (229, 0),  # 42 * 229
    32000: (200, 0),
    51864: (227, 119),  # 24 * 2161, of Whisper tiny.en
    256206: (506, 336),  # 6 * 42701, of NLLB
}
"""Vocabularies: the size of their blocks, and the number of values that are added."""


def logits(rows: int, queries: int, vocabulary: int, kind: str) -> Tensor:
    generator = np.random.default_rng(vocabulary)
    values = generator.standard_normal((rows, queries, vocabulary)).astype(np.float32)
    if kind == "equal":
        values = np.round(values)
    elif kind == "last":
        values[..., -1] = 9
    elif kind == "impossible":
        values[..., : vocabulary // 2] = -np.inf
    return torch.from_numpy(values)


def expected(values: Tensor) -> tuple[Tensor, Tensor]:
    last = values[:, -1].double()
    first = (last == last.amax(-1, keepdim=True)).int().argmax(-1)
    return first, last.log_softmax(-1).gather(1, first[:, None])[:, 0]


def test_blocks() -> None:
    assert {vocabulary: blocks_of(vocabulary) for vocabulary in BLOCKS} == BLOCKS
    for vocabulary in range(2048, 70_000, 7):
        size, added = blocks_of(vocabulary)
        count, rest = divmod(vocabulary + added, size)
        assert rest == 0 and added < size
        assert max(size, count) <= 4 * vocabulary**0.5 + 2


@pytest.mark.parametrize("vocabulary", [v for v in BLOCKS if v < 60_000])
@pytest.mark.parametrize("rows, queries", [(1, 1), (7, 3)])
def test_the_token_is_the_first_of_the_largest(vocabulary: int, rows: int, queries: int) -> None:
    select = GreedySelection((), vocabulary)
    for kind in ("random", "equal", "last", "impossible"):
        values = logits(rows, queries, vocabulary, kind)
        token, score = select(values)
        first, probability = expected(values)
        assert token.tolist() == first.tolist(), kind
        torch.testing.assert_close(score.double(), probability, atol=1e-6, rtol=1e-5)


def test_suppressed_tokens_are_not_selected() -> None:
    values = logits(3, 2, 2053, "last")
    token, score = GreedySelection((2052, 1), 2053)(values)
    allowed = values.clone()
    allowed[..., [1, 2052]] = -torch.inf
    first, probability = expected(allowed)
    assert token.tolist() == first.tolist()
    torch.testing.assert_close(score.double(), probability, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the exporter, about PyTorch itself
def test_the_graph_selects_the_same_without_reductions_over_the_vocabulary() -> None:
    """As ONNX, and with constant shapes only: shapes that are computed take time in every step."""
    dimensions = {0: torch.export.Dim("B"), 1: torch.export.Dim("Q")}
    program = torch.onnx.export(
        GreedySelection((), 2053).eval(),
        (logits(2, 3, 2053, "random"),),
        dynamo=True,
        opset_version=OPSET,
        dynamic_shapes=(dimensions,),
        verbose=False,
    )
    assert program is not None
    found = Counter(node.op_type for node in program.model.graph)
    assert (found["ArgMax"], found["ReduceMax"], found["Pad"], found["Shape"]) == (2, 1, 1, 0)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (name,) = (value.name for value in session.get_inputs())
    for kind in ("random", "equal", "last", "impossible"):
        for rows, queries in ((1, 1), (7, 2)):
            values = logits(rows, queries, 2053, kind)
            token, score = session.run(None, {name: values.numpy()})
            first, probability = expected(values)
            assert token.tolist() == first.tolist(), kind
            np.testing.assert_allclose(score, probability, rtol=1e-5)
