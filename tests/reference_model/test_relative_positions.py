"""Relative positions and RMSNorm, against Hugging Face's T5."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from dragoman.reference_model import ConfigError, ModelConfig
from dragoman.reference_model.attention import MASKED_SCORE, RelativePositions
from dragoman.reference_model.layers import RMSNorm


@pytest.fixture(scope="module")
def t5() -> Any:
    """Imported here, since it takes three seconds."""
    return importlib.import_module("transformers.models.t5.modeling_t5")


SIZES = [(4, 3), (5, 7), (7, 20), (8, 9), (8, 128), (13, 64), (16, 20), (31, 100), (32, 128)]


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [*SIZES, (32, 17), (64, 256), (320, 1000)])
def test_buckets_match_hugging_face(
    buckets: int, max_distance: int, both_sides: bool, t5: Any
) -> None:
    ours = RelativePositions(3, buckets=buckets, max_distance=max_distance, both_sides=both_sides)
    far = 2 * max_distance + 3
    position = torch.tensor([[far, 0, far // 2], [1, 2 * far, far + 1]])
    distance = torch.arange(2 * far + 1) - position[:, :, None]
    bucket = t5.T5Attention._relative_position_bucket(distance, both_sides, buckets, max_distance)
    assert 0 <= int(bucket.min()) <= int(bucket.max()) < buckets
    with torch.no_grad():
        added = ours(position, 2 * far + 1)
        assert torch.equal(added, ours.table[bucket].permute(0, 3, 1, 2))


def test_the_score_of_a_masked_key_is_below_all_others() -> None:
    positions = RelativePositions(2, buckets=8, max_distance=9, both_sides=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])[:, None, None]
    with torch.no_grad():
        added = positions.masked(torch.arange(3)[None], mask)
        whole = positions(torch.arange(3)[None], 3).expand(2, -1, -1, -1)
    assert added.shape == (2, 2, 3, 3)
    hidden = ~mask.expand_as(added)
    assert (added[hidden] == MASKED_SCORE).all()
    assert torch.equal(added[~hidden], whole[~hidden])


@pytest.mark.parametrize(("buckets", "distance"), [(3, 9), (8, 4), (0, 9), (33, 16)])
def test_meaningless_sizes_are_refused(buckets: int, distance: int) -> None:
    with pytest.raises(ConfigError, match="relative_buckets of at least 4 and a relative_max"):
        ModelConfig(
            source_vocab_size=5,
            target_vocab_size=5,
            positions="relative",
            relative_buckets=buckets,
            relative_max_distance=distance,
        )


@pytest.mark.parametrize("scale", [1e-4, 1.0, 3e4])
def test_rms_norm_matches_hugging_face(scale: float, t5: Any) -> None:
    theirs, ours = t5.T5LayerNorm(7, eps=1e-6), RMSNorm(7, gain=True, epsilon=1e-6)
    assert ours.gain is not None
    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)) * scale
    with torch.no_grad():
        ours.gain.copy_(torch.linspace(-2, 2, 7))
        theirs.weight.copy_(ours.gain)
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(
            RMSNorm(7, gain=False, epsilon=1e-6)(x),
            x / (x**2).mean(-1, keepdim=True).add(1e-6).sqrt(),
        )
