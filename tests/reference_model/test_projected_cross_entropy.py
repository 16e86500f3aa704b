"""The training loss, held to PyTorch's own cross-entropy of the whole logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.reference_model.training import loss as loss_module
from dragoman.reference_model.training.loss import projected_cross_entropy


def tensors(*, tokens: int, width: int, vocabulary: int, bias: bool) -> list[Tensor]:
    torch.manual_seed(tokens)
    shapes = [(tokens, width), (vocabulary, width), *([(vocabulary,)] if bias else [])]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("tokens", "chunk"), [(1, 1), (7, 33), (7, 2**21), (12, 44)])
def test_loss_and_gradients_are_those_of_pytorch(
    tokens: int, chunk: int, *, bias: bool, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows a chunk has, and whether they divide the tokens or not."""
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS", chunk)
    values = tensors(tokens=tokens, width=5, vocabulary=11, bias=bias)
    right = torch.randint(0, 11, (tokens,))
    expected = F.cross_entropy(F.linear(*values), right, label_smoothing=smoothing)
    wanted = torch.autograd.grad(expected, values)
    found = projected_cross_entropy(
        values[0],
        values[1],
        values[2] if bias else None,
        right,
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(found, expected)
    for gradient, want in zip(torch.autograd.grad(found, values), wanted, strict=True):
        torch.testing.assert_close(gradient, want)


def test_shares_of_a_step_add_up() -> None:
    """The losses and gradients of batches with 3 and 4 tokens, both divided by 7, add up."""
    hidden, weight = tensors(tokens=7, width=4, vocabulary=6, bias=False)
    right = torch.randint(0, 6, (7,))
    expected = F.cross_entropy(hidden @ weight.T, right, label_smoothing=0.1)
    (wanted,) = torch.autograd.grad(expected, weight)
    parts = [
        projected_cross_entropy(
            hidden[rows], weight, None, right[rows], label_smoothing=0.1, total=7
        )
        for rows in (slice(0, 3), slice(3, 7))
    ]
    torch.testing.assert_close(parts[0] + parts[1], expected)
    (found,) = torch.autograd.grad(parts[0] + parts[1], weight)
    torch.testing.assert_close(found, wanted)


def test_gradients_are_multiplied_by_what_comes_after() -> None:
    hidden, weight = tensors(tokens=3, width=4, vocabulary=6, bias=False)
    right = torch.tensor([0, 5, 2])
    once = projected_cross_entropy(hidden, weight, None, right)
    (single,) = torch.autograd.grad(once, hidden)
    (triple,) = torch.autograd.grad(
        3 * projected_cross_entropy(hidden, weight, None, right), hidden
    )
    torch.testing.assert_close(triple, 3 * single)


def test_mixed_precision_rounds_products_only() -> None:
    """Products of bfloat16 numbers are off by its rounding, a part in 256; the softmax is not."""
    hidden, weight = tensors(tokens=9, width=16, vocabulary=40, bias=False)
    right = torch.randint(0, 40, (9,))
    exact = projected_cross_entropy(hidden, weight, None, right)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = projected_cross_entropy(hidden, weight, None, right)
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=0.02)
    assert rounded.item() != exact.item()
    (gradient,) = torch.autograd.grad(rounded, weight)
    (wanted,) = torch.autograd.grad(exact, weight)
    assert gradient.dtype == torch.float32
    assert (gradient - wanted).norm() < 0.05 * wanted.norm()
