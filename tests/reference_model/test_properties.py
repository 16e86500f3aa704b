"""Properties that follow from the formulas of "Attention Is All You Need" for any weights."""

from __future__ import annotations

import math

import pytest
import torch

from dragoman.reference_model import scaled_dot_product_attention
from dragoman.reference_model.stacks import sinusoids


@pytest.mark.parametrize("d_model", [2, 6, 512])
@pytest.mark.parametrize("offset", [1, 2, 17, 100])
def test_an_offset_is_one_linear_map_at_every_position(d_model: int, offset: int) -> None:
    """Section 3.5: PE(pos + k) = M_k PE(pos). Each pair (sin, cos) of frequency w is turned by the
    angle w k: sin(w (p + k)) = cos(w k) sin(w p) + sin(w k) cos(w p), and so on."""
    table = sinusoids(300, d_model).double()
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    sine, cosine = (frequency * offset).sin(), (frequency * offset).cos()
    turn = torch.stack([torch.stack([cosine, sine], -1), torch.stack([-sine, cosine], -1)], -2)
    pairs = table.reshape(300, -1, 2)
    shifted = torch.einsum("fij,pfj->pfi", turn, pairs[: 300 - offset])
    torch.testing.assert_close(shifted, pairs[offset:], atol=1e-6, rtol=0)


@pytest.mark.parametrize("offset", [1, 33])
def test_the_map_can_be_found_from_the_table_alone(offset: int) -> None:
    """Without the formula: a map fitted to some positions holds at all others."""
    table = sinusoids(400, 6).double()
    before, after = table[:-offset], table[offset:]
    fitted = torch.linalg.lstsq(before[::9], after[::9]).solution
    torch.testing.assert_close(before @ fitted, after, atol=1e-5, rtol=0)


@pytest.mark.parametrize("d_k", [1, 4, 64, 120])
def test_scaling_makes_the_variance_of_scores_one(d_k: int) -> None:
    """Section 3.2.1, footnote 4: the variance of q . k is d_k for independent components of mean 0
    and variance 1, which 1 / sqrt(d_k) makes 1."""
    generator = torch.Generator().manual_seed(d_k)
    query, key = torch.randn(2, 200_000, d_k, generator=generator, dtype=torch.float64)
    scores = (query * key).sum(-1)
    # Of n draws, the variance of the sample variance is about (kurtosis - 1) / n.
    kurtosis = 3 + 6 / d_k
    tolerance = 4 * math.sqrt((kurtosis - 1) / len(scores))
    assert (scores.var() / d_k).item() == pytest.approx(1, abs=tolerance)
    assert (scores / math.sqrt(d_k)).var().item() == pytest.approx(1, abs=tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("queries", "keys", "size"), [(1, 1, 3), (5, 7, 2), (3, 11, 24)])
def test_outputs_are_in_the_convex_hull_of_the_values(
    queries: int, keys: int, size: int, masked: bool
) -> None:
    """In every direction, an output reaches no further than the values that its query sees."""
    generator = torch.Generator().manual_seed(keys)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value = random(7, 2, queries, size), random(7, 2, keys, size), random(7, 2, keys, 5)
    mask = None
    if masked:
        mask = torch.rand(7, 1, queries, keys, generator=generator) < 0.5
        mask[..., 0] = True
    output = scaled_dot_product_attention(9 * query, key, value, mask)
    directions = torch.cat([torch.eye(5, dtype=torch.float64), random(200, 5)])
    reach = (value @ directions.T)[:, :, None]  # [B, H, 1, K, directions]
    seen = torch.ones(1, dtype=torch.bool) if mask is None else mask[..., None]
    highest = reach.masked_fill(~seen, -math.inf).amax(-2)
    lowest = reach.masked_fill(~seen, math.inf).amin(-2)
    along = output @ directions.T
    assert (along <= highest + 1e-12).all()
    assert (along >= lowest - 1e-12).all()
