"""A bundle of a model so small that the time of a step is overhead only."""

from __future__ import annotations

from pathlib import Path

from dragoman.benchmarks.models.random_checkpoint import random_model
from dragoman.export import export_bundle
from dragoman.reference_model import ModelConfig


def small_bundle(directory: Path, positions: int) -> Path:
    """The directory of a bundle with this many target positions; its output always fills them."""
    config = ModelConfig(
        source_vocab_size=17,
        target_vocab_size=19,
        encoder_layers=1,
        decoder_layers=1,
        d_model=16,
        num_heads=2,
        d_ff=24,
        max_source_positions=33,
        max_target_positions=positions,
        dropout=0.0,
    )
    export_bundle(random_model(config, seed=3), directory, name="small")
    return directory
