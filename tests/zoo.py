"""Tiny models that several folders of tests share: what one exports, others find in the cache."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from dragoman.export import TokenizerFiles, export_bundle
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


def prose_bundle(directory: Path) -> Path:
    """A bundle that translates any text of up to 63 bytes, at random, with the attention graph."""
    files = directory.with_name(f"{directory.name}-tokenizers")
    files.mkdir(parents=True)
    directory.mkdir()
    tokenizers = TokenizerFiles(files / "source_tokenizer.json", files / "target_tokenizer.json")
    specials = {piece: index for index, piece in enumerate(g2p_en.SPECIAL_TOKENS)}
    count = len(specials)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    source = Tokenizer(models.BPE(specials | {c: count + n for n, c in enumerate(alphabet)}, []))
    source.normalizer = normalizers.Strip()
    source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    source.decoder = decoders.ByteLevel()
    words = [f"{first}{last}" for first in "blmnrst" for last in "aeiou"] + ["fin."]
    target = Tokenizer(models.WordLevel(specials | {w: count + n for n, w in enumerate(words)}))
    target.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for tokenizer, file in ((source, tokenizers.source), (target, tokenizers.target)):
        tokenizer.add_special_tokens(list(specials))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", specials["</s>"])]
        )
        tokenizer.save(str(file))
    model = letters_model(
        source_vocab_size=count + len(alphabet),
        target_vocab_size=count + len(words),
        max_source_positions=64,
    )
    export_bundle(model, directory, name="prose-en-es", tokenizers=tokenizers, attention=True)
    return directory
