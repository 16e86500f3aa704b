"""Tiny models that several folders of tests share: what one exports, others find in the cache."""

from __future__ import annotations

from pathlib import Path

from dragoman.export import TokenizerFiles
from dragoman.reference_model import ModelConfig, Transformer
from dragoman.reference_model.recipes import g2p_en

from .random_weights import random_transformer

LETTERS: dict[str, object] = {
    "source_vocab_size": 29,
    "target_vocab_size": 42,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 32,
    "num_heads": 2,
    "d_ff": 48,
    "norm_order": "pre",
    "max_source_positions": 32,
    "max_target_positions": 24,
}
"""The configuration of a model in the vocabularies of g2p-en."""


def letters_model(*, seed: int = 0, **changes: object) -> Transformer:
    """A model in the vocabularies of g2p-en whose outputs vary in length."""
    return random_transformer(ModelConfig.from_dict(LETTERS | changes), seed=seed)


def letters_tokenizers(directory: Path) -> TokenizerFiles:
    """The tokenizers of g2p-en, written into a directory under their names in a checkpoint."""
    files = TokenizerFiles(directory / "source_tokenizer.json", directory / "target_tokenizer.json")
    g2p_en.make_source_tokenizer().save(str(files.source))
    g2p_en.make_target_tokenizer().save(str(files.target))
    return files
