"""Shapes of models with random weights, and their `config.json`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from dragoman.errors import DragomanError


class Shape(NamedTuple):
    """An encoder-decoder."""

    layers: int
    d_model: int
    heads: int
    d_ff: int
    activation: str
    """Activation of the feed-forward blocks, in Hugging Face's spelling."""
    family: Literal["marian", "bart", "m2m_100"] = "marian"
    """Model family, which determines positions and norms."""
    vocab_size: int = 32000
    positions: int = 512
    sharpness: float = 4.0
    decoder_layers: int = 0
    """Layers of the decoder; 0: as many as the encoder has."""

    @property
    def layer_weights(self) -> int:
        """The weights that a step reads in all decoder layers.

        The key and value projections of cross-attention count as the encoder's, so that its layers
        have as many.
        """
        layers = self.decoder_layers or self.layers
        return layers * (6 * self.d_model**2 + 2 * self.d_model * self.d_ff)

    def cached(self, positions: float) -> float:
        """Return the numbers that all decoder layers cache of a row with so many positions."""
        return 2 * (self.decoder_layers or self.layers) * self.d_model * positions


SHAPES = {  # layers, d_model, heads, d_ff, activation; family, vocabulary, positions, sharpness
    "tiny": Shape(2, 64, 4, 128, "swish"),
    "base": Shape(6, 512, 8, 2048, "swish"),
    "student": Shape(6, 256, 8, 1536, "relu", decoder_layers=2),
    "big": Shape(6, 1024, 16, 4096, "relu"),
    "bart-tiny": Shape(2, 64, 4, 128, "gelu", "bart", 264, sharpness=2.0),
    "bart-large-cnn": Shape(12, 1024, 16, 4096, "gelu", "bart", 50264, 1024, 2.0),
    "nllb-tiny": Shape(2, 64, 4, 128, "relu", "m2m_100", 262, sharpness=1.0),
    "nllb-600m": Shape(12, 1024, 16, 4096, "relu", "m2m_100", 256206, 1024, 1.0),
    "nllb-1.3b": Shape(24, 1024, 16, 8192, "relu", "m2m_100", 256206, 1024, 1.0),
    "nllb-3.3b": Shape(24, 2048, 16, 8192, "relu", "m2m_100", 256206, 1024, 1.0),
}
"""base and big are those of OPUS-MT, student that of Marian's students, bart-large-cnn that of
the summarizer of this name (406 M parameters), the others those of NLLB-200 (615 M, 1.37 and 3.34
billion); those called tiny are small enough for tests."""


def describe(shape: str, vocab_size: int) -> str:
    """Return the name of the model in records."""
    if shape in WHISPERS:
        return f"Whisper {shape}, random weights"
    family, _ = FAMILIES[SHAPES[shape].family]
    return f"{family} {shape}, vocabulary {vocab_size}, random weights"


def check_lengths(
    shape: str, source_length: int, longest_source: int | None, new_tokens: int
) -> None:
    """Raise DragomanError unless a shape has positions for sources and new tokens."""
    positions, longest = SHAPES[shape].positions, longest_source or source_length
    if max(source_length, longest, new_tokens + 1) > positions:
        raise DragomanError(
            f"expected sources of at most {positions} tokens and at most {positions - 1} new ones, "
            f"which {shape} has positions for, found {longest} and {new_tokens}"
        )
    if longest < source_length:
        raise DragomanError(
            "expected --longest-source to be at least --source-length, found "
            f"{longest} and {source_length}"
        )


LANGUAGE_MODELS: dict[str, dict[str, int]] = {
    "tiny": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 200, "n_positions": 128},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
}
"""Fields of GPT-2's `config.json`: gpt2 is the smallest (124 M parameters), tiny for tests."""


def describe_language_model(shape: str) -> str:
    """Return the name of the model in records."""
    text = "GPT-2, {n_layer} layers of {n_embd}, vocabulary {vocab_size}, random weights"
    return text.format_map(LANGUAGE_MODELS[shape])


FAMILIES = {
    "marian": ("Marian", "MarianMTModel"),
    "bart": ("BART", "BartForConditionalGeneration"),
    "m2m_100": ("NLLB", "M2M100ForConditionalGeneration"),
}
"""The name of each family, and that of its class in transformers."""


def config_of(shape: str, *, vocab_size: int | None = None) -> dict[str, Any]:
    """Return the `config.json` of a model of one of `SHAPES`.

    The end token is the first, padding and start are the last.
    """
    sizes = SHAPES[shape]
    size = vocab_size or sizes.vocab_size
    marian = {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": size}
    tokens: tuple[int | None, ...] = (0, None, size - 1, size - 1)
    if sizes.family == "m2m_100":  # whose positions are counted from the padding token
        tokens = (2, 0, 1, 2)
    special = "eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id"
    return {
        "model_type": sizes.family,
        "architectures": [FAMILIES[sizes.family][1]],
        "scale_embedding": sizes.family != "bart",
        **(marian if sizes.family == "marian" else {}),
        "vocab_size": size,
        "tie_word_embeddings": True,
        **stacks(sizes.d_model, sizes.layers, sizes.heads, sizes.d_ff),
        **({"decoder_layers": sizes.decoder_layers} if sizes.decoder_layers else {}),
        "activation_function": sizes.activation,
        "max_position_embeddings": sizes.positions,
        "forced_eos_token_id": None,
        **dict(zip(special, tokens, strict=True)),
    }


def stacks(d_model: int, layers: int, heads: int, d_ff: int) -> dict[str, Any]:
    """Return the fields of encoder and decoder layers, which have the same sizes."""
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": d_ff}
    sides = {f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sizes.items()}
    return {"is_encoder_decoder": True, "d_model": d_model, **sides}


ENCODERS: dict[str, dict[str, Any]] = {
    "minilm-l6": {"model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384}
    | {"intermediate_size": 1536},
    "bge-base": {"model_type": "bert"},
    "mpnet-base": {"model_type": "mpnet", "max_position_embeddings": 514},
}
"""Fields of the `config.json` of encoder-only models. Others are transformers' defaults, which are
those of the base models: 12 layers of 768, 12 heads, 3,072 inner, BERT's and MPNet's vocabulary."""

WHISPER_TINY_EN = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "vocab_size": 51864,
    "num_mel_bins": 80,
    **stacks(384, 4, 6, 1536),
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50256),
    "decoder_start_token_id": 50257,
}

LARGE_V3 = stacks(1280, 32, 20, 5120) | {"num_mel_bins": 128}
WHISPERS = {
    "small": stacks(768, 12, 12, 3072),
    "medium": stacks(1024, 24, 16, 4096),
    "large-v3-turbo": LARGE_V3 | {"decoder_layers": 4},
    "large-v3": LARGE_V3,
}
"""Fields of the `config.json` of multilingual Whisper models that differ from base's."""

WHISPER_GENERATION = {
    "is_multilingual": False,
    "no_timestamps_token_id": 50362,
    "max_new_tokens": 32,
}
"""The fields of Whisper tiny.en's `generation_config.json` besides tokens.

With random weights, every output is as long as it may be."""
