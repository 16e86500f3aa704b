"""Batches of texts: what stays in memory, how large they are, and that they change no text."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.runtime import CancelError, Model, load, read_bundle
from dragoman.runtime.encoding import front_end
from dragoman.runtime.format.manifest import Precision

from ..conftest import SetAfter
from .conftest import PIECES, Make

TEXTS = ["the man", "paris is in france.", "a", "food", "the man eats food.", "b c d", "e"]


class Recorded:
    """A backend that notes its batches, and asserts that no outputs of earlier ones are left."""

    def __init__(self, model: Model) -> None:
        self._encode = model.backend.encode
        self._left: list[weakref.ref[Any]] = []
        self.shapes: list[tuple[int, int]] = []

    def encode(self, source: Any, mask: Any, types: Any = None) -> dict[str, Any]:
        assert [left() for left in self._left if left() is not None] == []
        outputs = self._encode(source, mask, types)
        self._left = [weakref.ref(output) for output in outputs.values()]
        self.shapes.append(source.shape)
        return outputs


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end, "MAX_BATCH_SIZE", 2)


@pytest.mark.usefixtures("small_batches")
def test_outputs_are_gone_before_the_next_batch(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of vectors not even hidden states stay, of masks no more than the candidates."""
    vectors, masks = make("Model").ours, make("ForMaskedLM").ours
    masked = [f"{text} [MASK]" for text in TEXTS]
    expected = np.concatenate([vectors.encode([text]) for text in TEXTS])
    filled = [masks.fill([text])[0] for text in masked]
    for model in (vectors, masks):
        recorded = Recorded(model)
        monkeypatch.setattr(model.backend, "encode", recorded.encode)
        if model is vectors:
            np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)
            states = model.hidden_states(TEXTS)
            np.testing.assert_allclose([s.mean(0) for s in states], expected, atol=1e-5)
        else:
            found = model.fill(masked)
            assert [filling.text for filling in found] == [filling.text for filling in filled]
        assert {rows for rows, _ in recorded.shapes} == {1, 2}


@pytest.mark.parametrize("head", ["ForMaskedLM", "Model"])
def test_batches_are_bounded_by_their_logits(
    head: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One text of 7 tokens and six of 4, at most 16 tokens together: a model that gives vectors has
    no logits for each token, and takes all."""
    model = make(head).ours
    recorded = Recorded(model)
    monkeypatch.setattr(model.backend, "encode", recorded.encode)
    monkeypatch.setattr(front_end, "MAX_LOGITS", 16 * len(PIECES))
    texts = ["a b c [MASK] e", *["a [MASK]"] * 6]
    if head == "ForMaskedLM":
        assert all(filling.error is None for filling in model.fill(texts))
        assert recorded.shapes == [(2, 8), (4, 4), (1, 4)]  # padded to a multiple of 4
    else:
        model.encode(texts)
        assert len(recorded.shapes) == 1


def test_a_text_whose_outputs_are_not_finite_is_rejected_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make("ForMaskedLM").ours
    texts = ["a [MASK]", "b [MASK]", "c [MASK]"]
    (expected,) = model.fill(texts[:1])
    (bad,) = {*model.tokenize("b")} - {*model.tokenize("a")}
    encode = model.backend.encode

    def damaged(source: Any, mask: Any, types: Any = None) -> dict[str, Any]:
        rows = (source == bad).any(1)
        outputs = encode(source, mask, types).items()
        return {n: np.where(rows[:, None, None], np.nan, values) for n, values in outputs}

    monkeypatch.setattr(model.backend, "encode", damaged)
    found = model.fill(texts)
    assert found[1].error == "the model's outputs are not finite numbers"
    assert (found[0].text, found[0].error, found[2].error) == (expected.text, None, None)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_embeddings_are_batch_invariant(precision: Precision, make: Make, tmp_path: Path) -> None:
    """Bit for bit, although texts of other lengths change the padding."""
    exact = make("Model").ours
    neutral = read_bundle(exact.bundle.directory.parent / "neutral")
    optimize_bundle(neutral, tmp_path, target="cpu", precision=precision)
    texts = [*TEXTS, " ".join(TEXTS)]
    with load(tmp_path, threads=1) as model:
        together = model.encode(texts)
        alone = np.concatenate([model.encode([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.usefixtures("small_batches")
def test_a_call_stops_before_its_next_batch_and_keeps_finished_results(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are read first, then batches are computed."""
    vectors, masks = make("Model").ours, make("ForMaskedLM").ours
    masked = [f"{text} [MASK]" for text in TEXTS]
    expected = {
        "encode": list(vectors.encode(TEXTS)),
        "hidden_states": vectors.hidden_states(TEXTS),
        "fill": masks.fill(masked),
    }
    for name, all_results in expected.items():
        model = masks if name == "fill" else vectors
        recorded = Recorded(model)
        with monkeypatch.context() as patch:
            patch.setattr(model.backend, "encode", recorded.encode)
            with pytest.raises(CancelError) as stopped:
                getattr(model, name)(
                    masked if name == "fill" else TEXTS, cancel=SetAfter(len(TEXTS) + 2)
                )
        assert len(recorded.shapes) == 2
        finished = stopped.value.finished
        assert len(finished) == 4
        for index, result in finished.items():
            if name == "fill":
                assert result == all_results[index]
            else:
                np.testing.assert_array_equal(result, all_results[index])
    np.testing.assert_array_equal(vectors.encode(TEXTS, timeout=1000), expected["encode"])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([64, 8, 8, 8], [[64], [8, 8, 8]]),  # 64 + 24 + 2 runs for 256 + 1 run
        ([64, 60, 56, 52], [[64, 60, 56, 52]]),
        ([12, 4, 4, 4], [[12, 4, 4, 4]]),  # 48 + 1 run for 24 + 2 runs
        ([200, 196, 100, 96, 16, 12, 12], [[200, 196], [100, 96], [16, 12, 12]]),
        ([5], [[5]]),
    ],
)
def test_batches_are_divided_where_padding_costs_more(
    lengths: list[int], expected: list[list[int]]
) -> None:
    order = list(range(len(lengths)))
    assert [[lengths[i] for i in part] for part in front_end.divided(order, lengths)] == expected


def test_a_division_is_the_best_of_all() -> None:
    """Compared with every division of seven lengths into neighbours."""
    generator = np.random.default_rng(0)
    for _ in range(30):
        lengths = sorted(generator.integers(1, 128, 7).tolist(), reverse=True)
        costs = []
        for cuts in range(64):
            ends = [i + 1 for i in range(6) if cuts >> i & 1] + [7]
            begins = [0, *ends[:-1]]
            padded = sum(lengths[b] * (e - b) for b, e in zip(begins, ends, strict=True))
            costs.append(padded + front_end.RUN_TOKENS * len(ends))
        parts = front_end.divided(range(7), lengths)
        assert [i for part in parts for i in part] == list(range(7))
        found = sum(lengths[part[0]] * len(part) + front_end.RUN_TOKENS for part in parts)
        assert found == min(costs)


def test_unlike_texts_are_not_padded_to_the_longest(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end, "RUN_TOKENS", 4)
    model = make("Model").ours
    texts = ["a", "the man eats food. the man eats food.", "b", "food", "a b", "c d e"]
    expected = np.concatenate([model.encode([text]) for text in texts])
    recorded = Recorded(model)
    monkeypatch.setattr(model.backend, "encode", recorded.encode)
    np.testing.assert_array_equal(model.encode(texts), expected)
    assert recorded.shapes == [(1, 16), (1, 8), (4, 4)]
