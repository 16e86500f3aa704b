"""The presets: table 3 of "Attention Is All You Need"."""

from __future__ import annotations

import pytest
import torch

from dragoman.reference_model import PRESETS, ConfigError, ModelConfig, Transformer, preset

# N, d_model, d_ff, h, d_k, P_drop
TABLE_3 = {
    "tiny": (2, 64, 128, 4, 16, 0.1),
    "base": (6, 512, 2048, 8, 64, 0.1),
    "big": (6, 1024, 4096, 16, 64, 0.3),
}


def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


def by_hand(vocab: int, layers: int, d_model: int, d_ff: int) -> int:
    """Parameters of a post-norm model with one embedding shared by all three."""
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return vocab * d_model + layers * (encoder + decoder)


@pytest.mark.parametrize("name", TABLE_3)
def test_presets_match_the_table(name: str) -> None:
    config = preset(name, source_vocab_size=50, target_vocab_size=60)
    assert config.encoder_layers == config.decoder_layers == TABLE_3[name][0]
    assert (
        config.d_model,
        config.d_ff,
        config.num_heads,
        config.head_size,
        config.dropout,
    ) == TABLE_3[name][1:]
    assert (config.source_vocab_size, config.target_vocab_size) == (50, 60)


def test_there_is_one_other_preset() -> None:
    assert PRESETS.keys() == {*TABLE_3, "student"}
    config = preset("student", source_vocab_size=50, target_vocab_size=60)
    assert (config.encoder_layers, config.decoder_layers, config.decoder_kind) == (6, 2, "ssru")
    assert (config.d_model, config.d_ff, config.num_heads) == (256, 1536, 8)


@pytest.mark.parametrize("name", ["base", "big"])
def test_presets_have_the_paper_s_architecture(name: str) -> None:
    config = preset(name, source_vocab_size=50, target_vocab_size=50)
    assert (config.activation, config.norm_order, config.positions) == (
        "relu",
        "post",
        "sinusoidal",
    )
    assert config.scale_embedding
    assert config.tie_target_output


@pytest.mark.parametrize(
    ("name", "published", "tolerance"),
    # The paper rounds to the million and does not say which biases it counts.
    [("base", 65e6, 0.04), ("big", 213e6, 0.02)],
)
def test_the_number_of_parameters_is_as_published(
    name: str, published: float, tolerance: float
) -> None:
    config = preset(
        name, source_vocab_size=37_000, target_vocab_size=37_000, tie_source_target=True
    )
    count = parameters(config)
    assert count == by_hand(37_000, config.encoder_layers, config.d_model, config.d_ff)
    assert count == pytest.approx(published, rel=tolerance)


def test_changes_override_the_preset() -> None:
    config = preset("big", source_vocab_size=9, target_vocab_size=9, dropout=0.2, d_head=32)
    assert (config.dropout, config.head_size, config.d_model) == (0.2, 32, 1024)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'huge', expected one of tiny, base"):
        preset("huge", source_vocab_size=9, target_vocab_size=9)
